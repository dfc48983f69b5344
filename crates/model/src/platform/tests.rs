//! Every built-in file loads, and every kind of mistake is named with its file, line and key.

use super::*;

/// A file with every section that a hardware platform needs.
fn strom() -> String {
    Platform::built_in_text("strom-10g").unwrap()
}

fn error(text: &str) -> String {
    Platform::parse("x.toml", text).expect_err("a mistake").to_string()
}

/// The file with one piece of text replaced, and the line that it was on.
fn replaced(from: &str, to: &str) -> (String, usize) {
    let at = strom().find(from).expect("the piece is there");
    let line = strom()[..at].matches('\n').count() + 1;
    (strom().replacen(from, to, 1), line)
}

#[test]
fn built_in_platforms_load() {
    for name in Platform::built_in() {
        let platform = Platform::load(name).unwrap();
        assert_eq!(platform.name, name);
        assert!(platform.placements.client && platform.placements.host, "{name}");
        assert!(platform.params.iter().count() > 40, "{name}: {}", platform.params.shares_text());
        assert!(platform.params.iter().all(|param| param.status != SourceStatus::Measured), "{name}");
    }
}

#[test]
fn values_are_converted() {
    let strom = Platform::load("strom-10g").unwrap();
    let nic = strom.nic.as_ref().unwrap();
    assert_eq!(nic.pcie.read_latency, 1_500_000, "1.5 us in picoseconds");
    assert_eq!(nic.ethernet.rate, 1.25e9, "10 Gb/s in bytes a second");
    assert_eq!((nic.pipeline.width, nic.pipeline.clock), (8, 156.25e6));
    assert_eq!(nic.pipeline.command, CommandPath::Store);
    assert_eq!(strom.placements.nic, Some(NicDevice::Pipeline));
    assert_eq!((strom.placements.accel, strom.accel), (None, None));
    let param = strom.params.get("host.pcie.read_latency").unwrap();
    assert_eq!((param.text(param.value), param.status), ("1500 ns".into(), SourceStatus::Printed));
    let rambda = Platform::load("rambda").unwrap();
    assert_eq!(rambda.accel.unwrap().in_flight, 256);
    assert_eq!(Platform::load("minos").unwrap().replication.unwrap().fifo_entries, 5);
}

#[test]
fn other_values_make_another_platform() {
    let strom = Platform::load("strom-10g").unwrap();
    let path = "host.pcie.read_latency";
    let slow = strom.with(&[(path, 3e6)]).unwrap();
    assert_eq!(slow.nic.unwrap().pcie.read_latency, 3_000_000);
    assert_eq!(strom.params.get(path).unwrap().value, 1.5e6, "the first one is as it was");
    assert!(strom.with(&[("host.core.cores", 0.0)]).is_err());
}

#[test]
fn mistakes_name_file_line_and_key() {
    let pcie = "[host.pcie]\nread_latency = { value = 1500, unit = \"ns\"";
    let cases = [
        ("[host.dram]\nlatency =", "[host.dram]\nlatencie =", 1, "host.dram.latency: the value is missing"),
        (
            "[host.dram]",
            "[host.dram]\ncolour = { value = 1, unit = \"ns\", status = \"printed\", range = [1, 1], source = \"x\" }",
            1,
            "host.dram.colour: nothing reads this key",
        ),
        ("[host.dram]", "[host.sram]", 0, "needs a section [host.dram]: is it [host.sram], with a value in line "),
        ("[host.cache]", "[host.cash]", 0, "needs a section [host.cache]: is it [host.cash], "),
        (
            pcie,
            &pcie.replace("ns", "GB"),
            1,
            "host.pcie.read_latency: GB is not the unit of a time: write ps, ns, us, ms, s",
        ),
        (pcie, &pcie.replace("ns", "parsec"), 1, "host.pcie.read_latency: there is no unit \"parsec\""),
        (pcie, &pcie.replace(", unit = \"ns\"", ""), 1, "host.pcie.read_latency: unit is missing"),
        (
            pcie,
            &pcie.replace("1500", "99"),
            1,
            "host.pcie.read_latency: the value 99 ns lies outside its range from 1500 to 1500",
        ),
        (pcie, &pcie.replace("1500", "nan"), 1, "host.pcie.read_latency: value must be a finite number"),
        (pcie, &pcie.replace("value", "valeu"), 1, "host.pcie.read_latency: a value has no field \"valeu\""),
        (pcie, "[host.pcie]\nread_latency = 1500 #", 1, "host.pcie.read_latency: write { value = .., "),
        ("nic = \"pipeline\"", "nic = \"cores\"", 0, "placements.nic: the placement needs a section [nic.cores]"),
        ("nic = \"pipeline\"", "nic = \"magic\"", 0, "placements.nic: \"magic\" is not known"),
        ("nic = \"pipeline\"", "accel = \"coherent\"", 0, "placements.accel: the placement needs a section [accel]"),
        ("nic = \"pipeline\"", "nic = \"pipeline", 0, ""),
    ];
    for (from, to, below, expected) in cases {
        let (text, line) = replaced(from, to);
        let message = error(&text);
        let place = format!("x.toml, line {}", line + below);
        assert!(message.contains(expected), "{message}\nshould say: {expected}");
        assert!(message.starts_with("x.toml, line "), "{message}");
        if !["[host.dram]", "[host.cache]"].contains(&from) {
            assert!(message.starts_with(&place), "{message}\nshould be at {place}");
        }
    }
}

#[test]
fn values_that_hardware_cannot_have_are_refused() {
    for (from, to, expected) in [
        ("cores = { value = 4", "cores = { value = 4.5", "must be a whole number"),
        ("cores = { value = 4", "cores = { value = 0", "at least 1"),
        ("tags = { value = 64", "tags = { value = -1", "no hardware has a count like that"),
        ("size = { value = 8", "size = { value = 1e30", "no hardware has a size like that"),
    ] {
        let (text, line) = replaced(from, to);
        // The range is widened with the value, so that it is the value itself that is wrong.
        let lines: Vec<_> = text.lines().collect();
        let bad = lines[line - 1];
        let start = bad.find("range = [").unwrap();
        let end = start + bad[start..].find(']').unwrap();
        let wide = format!("{}range = [-1, 1e30{}", &bad[..start], &bad[end..]);
        let narrow = if expected.starts_with("no hardware") {
            wide
        } else {
            format!("{}range = [0, 9{}", &bad[..start], &bad[end..])
        };
        let message = error(&text.replace(bad, &narrow));
        assert!(message.starts_with(&format!("x.toml, line {line}, ")) && message.contains(expected), "{message}");
    }
}

#[test]
fn what_drives_nothing_is_refused() {
    let value =
        |unit: &str| format!("{{ value = 5, unit = {unit:?}, status = \"printed\", range = [5, 5], source = \"x\" }}");
    for (name, section, key, unit) in [
        ("strom-10g", "host.cache", "ddio_ways", "ways"),
        ("strom-10g", "host.pmem", "line", "B"),
        ("dfabric", "rack", "racks", "count"),
        ("bluefield2", "nic.pipeline", "kernel_cycles", "cycles"),
        ("bluefield2", "module.logic", "instruction", "cycles"),
    ] {
        let (text, line) = (Platform::built_in_text(name).unwrap(), format!("{key} = {}", value(unit)));
        let header = format!("[{section}]\n");
        let text = match text.contains(&header) {
            true => text.replace(&header, &format!("{header}{line}\n")),
            false => format!("{text}\n{header}{line}\n"),
        };
        let message = error(&text);
        assert!(message.contains(&format!(", {section}.{key}: ")) && message.contains("nothing"), "{message}");
    }
}

#[test]
fn what_no_placement_uses_is_refused() {
    for (placement, section) in [("accel = \"coherent\"\n", "accel."), ("nic = \"cores\"\n", "nic.cores.")] {
        let text = Platform::built_in_text("rambda").unwrap();
        assert!(text.contains(placement));
        let message = error(&text.replacen(placement, "", 1));
        assert!(message.contains(&format!(", {section}")) && message.contains("nothing"), "{message}");
    }
}

#[test]
fn parts_are_written_once_and_mistakes_in_them_name_the_part() {
    // A BlueField-2 is the same card in all platforms that have one.
    let [one, other] = ["bluefield2", "rambda"].map(|name| Platform::load(name).unwrap());
    let (nic, other_nic) = (one.nic.unwrap(), other.nic.unwrap());
    assert_eq!((nic.pipeline, nic.ethernet.latency), (other_nic.pipeline, other_nic.ethernet.latency));
    let (cores, other_cores) = (one.nic_cores.unwrap(), other.nic_cores.unwrap());
    let own = |cores| NicCores { speed: 1.0, dispatch: 0, ..cores };
    assert_eq!(own(cores), own(other_cores));

    let (directory, file) = (tempfile::tempdir().unwrap(), "mine.toml");
    let path = |name: &str| directory.path().join(name);
    let text = strom();
    let dram = text.find("[host.dram]\n").unwrap() + "[host.dram]\n".len();
    let end = dram + text[dram..].find("\n\n").unwrap();
    let write = |part: &str, rest: &str| {
        std::fs::write(path("ours.toml"), format!("# A memory.\n\n{part}\n")).unwrap();
        std::fs::write(path(file), format!("{}part = \"ours\"{rest}{}", &text[..dram], &text[end..])).unwrap();
        Platform::load(path(file).to_str().unwrap()).map_err(|e| e.to_string())
    };
    assert_eq!(write(&text[dram..end], "").unwrap().dram.latency, 80_000);
    let message = write(&text[dram..end].replace("\"ns\"", "\"parsec\""), "").unwrap_err();
    assert!(message.contains("ours.toml, line 3, host.dram.latency: there is no unit"), "{message}");
    let message = write(&text[dram..end], &format!("\n{}", &text[dram..end])).unwrap_err();
    assert!(message.contains("mine.toml, line ") && message.contains("duplicate key"), "{message}");
    let message = error("[host.dram]\npart = \"nothing\"\n");
    assert!(message.starts_with("x.toml, line 2, host.dram.part: there is no part \"nothing\""), "{message}");
    assert!(error("part = \"../secret\"\n").contains("there is no part"));
}

#[test]
fn unknown_names_and_missing_files_are_told() {
    let message = Platform::load("strom-1g").unwrap_err().to_string();
    assert!(message.contains("give one of strom-10g, strom-100g, rambda"), "{message}");
    assert!(matches!(Platform::load("/"), Err(PlatformError::Read { .. })));
}

#[test]
fn shares_and_open_values() {
    let strom = Platform::load("strom-10g").unwrap().params;
    let total: usize = strom.shares().iter().map(|share| share.values).sum();
    assert_eq!(total, strom.iter().count());
    assert!(strom.open().any(|param| param.path == "nic.pipeline.rx_depth"));
    assert!(strom.open().all(|param| param.path != "host.pcie.read_latency"), "printed, without room");
}

#[test]
fn the_curve_is_read_between_its_points() {
    let point = |size: &str, ns: u32| {
        format!(
            "{size} = {{ value = {ns}, unit = \"ns\", status = \"measured\", range = [{ns}, {ns}], source = \"x\" }}\n"
        )
    };
    let section = &format!("[host.curve]\n{}{}", point("16KiB", 1), point("64KiB", 3));
    let params = Params::parse("x.toml", section).unwrap();
    let curve = params.section("host.curve").curve().unwrap();
    assert_eq!(curve, [(16384, 1000), (65536, 3000)]);
    let read = |bytes, logarithmic| on_curve(&curve, bytes, logarithmic);
    assert_eq!((read(1.0, true), read(1e9, true)), (1000.0, 3000.0));
    assert!((read(32768.0, true) - 2000.0).abs() < 1e-9, "half-way by the logarithm");
    assert!((read(40960.0, false) - 2000.0).abs() < 1e-9, "half-way by the size");
    let bad = Params::parse("x.toml", &section.replace("64KiB", "64Kib")).unwrap();
    assert!(bad.section("host.curve").curve().unwrap_err().to_string().contains("line 3, host.curve.64Kib"));
}

proptest::proptest! {
    #[test]
    fn any_text_loads_or_is_refused(text in "[a-z.= \\[\\]{}\"0-9,\n-]{0,200}") {
        let _ = Platform::parse("x.toml", &text);
    }

    #[test]
    fn any_damage_is_refused_or_harmless(at in 0usize..7000, with in "[\\PC\n]{0,4}") {
        let text = strom();
        let (mut from, mut to) = (at.min(text.len()), (at + 3).min(text.len()));
        while !text.is_char_boundary(from) { from -= 1; }
        while !text.is_char_boundary(to) { to -= 1; }
        let damaged = format!("{}{with}{}", &text[..from], &text[to.max(from)..]);
        if let Err(e) = Platform::parse("x.toml", &damaged) {
            proptest::prop_assert!(e.to_string().starts_with("x.toml, line "), "{}", e);
        }
    }
}

#[test]
fn an_operation_is_no_platform_and_said_to_be_none() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("op.toml");
    let text = "title = \"x\"\nrequest = \"32 B\"\n\n[[access]]\ncount = 1\nsize = \"64 B\"\nkind = \"read\"\n";
    std::fs::write(&file, text).unwrap();
    let said = Platform::load(file.to_str().unwrap()).unwrap_err().to_string();
    assert!(said.contains("op.toml is an operation, no platform: ask `remora where "), "{said}");
}
