//! Stock verbs programs through `remora exec`, on two devices of this machine, and what each call refuses.
//!
//! Skipped, with the reason printed, where a program, the C compiler or the verbs library (`cargo build -p
//! remora-verbs`) is missing; a failure there where `CI=true`.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use remora_testing::{Running, eventually, skip};

const REMORA: &str = env!("CARGO_BIN_EXE_remora");

/// Whether the tests can run; says why not.
fn ready(program: &str, package: &str) -> bool {
    let installed = Path::new("/usr/bin").join(program).exists();
    let library = Path::new(REMORA).with_file_name("libibverbs.so").exists();
    if !installed {
        skip(format!("{program} is not installed"), &format!("Install the package {package}"));
    } else if !library {
        skip("libibverbs.so is not beside remora", "Run cargo build -p remora-verbs");
    }
    installed && library
}

fn start(options: &[&str], words: &[&str]) -> Child {
    let mut command = Command::new(REMORA);
    command.arg("exec").args(options).arg("--").args(words).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("remora starts")
}

/// What a program said until its end, which must be a good one.
fn end(child: Child, words: &[&str]) -> Output {
    let output = any_end(child, words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    output
}

/// What a program said until its end.
fn any_end(mut child: Child, words: &[&str]) -> Output {
    let start = Instant::now();
    while child.try_wait().expect("a child can be waited for").is_none() {
        // Far longer than any takes on a machine that is merely busy.
        if start.elapsed() > Duration::from_secs(600) {
            let _ = child.kill();
            panic!("{words:?} hangs: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("output")
}

/// Whether somebody listens on the TCP port. A try to connect would be taken for the client, one to bind gets in the
/// server's way.
fn listens(port: u16) -> bool {
    let (port, listening) = (format!(":{port:04X}"), "0A");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().filter_map(|table| std::fs::read_to_string(table).ok()).any(|table| {
        let mut sockets = table.lines().map(|line| line.split_whitespace().skip(1).step_by(2));
        sockets.any(|mut socket| {
            socket.next().is_some_and(|local| local.ends_with(&port)) && socket.next() == Some(listening)
        })
    })
}

/// Runs a server, and a client with the same words and the server's host. Both end well.
fn meet(options: &[&str], words: &[&str]) {
    for output in ends_of(options, words) {
        assert!(output.status.success(), "{words:?}: {output:?}");
    }
}

/// How client and server end.
fn ends_of(options: &[&str], words: &[&str]) -> [Output; 2] {
    let port = remora_testing::free_port().to_string();
    let words = [words, &["-p", &port]].concat();
    let server = start(options, &words);
    let number = port.parse().expect("a number");
    eventually(format!("{words:?} listens"), || listens(number).then_some(()));
    let words = [&words[..], &["127.0.0.1"]].concat();
    [any_end(start(options, &words), &words), any_end(server, &words)]
}

/// A program of ours, built with these flags; nothing if that cannot be done here, which is said. The directory goes with it.
fn built(name: &str, flags: &[&str]) -> Option<(tempfile::TempDir, String)> {
    if !ready("cc", "gcc") {
        return None;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join(name).to_str().expect("a path").to_string();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name).with_extension("c");
    let compiled = Command::new("cc").arg(source).arg("-o").arg(&program).args(flags).output().expect("cc runs");
    if !compiled.status.success() {
        skip(format!("{name} cannot be compiled: {compiled:?}"), "Install the package libibverbs-dev");
        return None;
    }
    Some((dir, program))
}

#[test]
fn the_device_shows_itself() {
    if ready("ibv_devinfo", "ibverbs-utils") {
        let words = ["ibv_devinfo", "-v"];
        let said = end(start(&["--device-address", "127.0.99.9", "--mtu", "1024"], &words), &words).stdout;
        let said = String::from_utf8_lossy(&said);
        for line in ["remora0", "PORT_ACTIVE", "active_mtu:\t\t1024", "::ffff:127.0.99.9, RoCE v2", "Ethernet"] {
            assert!(said.contains(line), "{line} in {said}");
        }
    }
}

#[test]
fn pingpong_programs_verify_their_data() {
    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_srq_pingpong", "ibv_ud_pingpong"] {
        if ready(program, "ibverbs-utils") {
            let check: &[&str] = if program == "ibv_ud_pingpong" { &[] } else { &["-c"] };
            meet(&[], &[&[program, "-g", "1", "-n", "50"], check].concat());
            meet(&["--link", "udp"], &[&[program, "-g", "0", "-n", "50", "-e"], check].concat());
        }
    }
}

/// Runs with loss, and how many of them end well at both sides at least. With 5 % loss 15 to 30 % lose their last
/// acknowledgement on any stack (docs/interop.md); at 30 % none of ten ends well in six of a million such tests.
const LOSSY_RUNS: u32 = 10;
const LOSSY_GOOD: u32 = 1;

#[test]
fn data_survive_loss() {
    if ready("ibv_rc_pingpong", "ibverbs-utils") {
        let words = ["ibv_rc_pingpong", "-g", "1", "-n", "10", "-s", "20000", "-c"];
        // Who is done ends; if its last acknowledgement is lost, nobody is left to repeat it (docs/interop.md).
        let alone = |end: &Output| String::from_utf8_lossy(&end.stderr).contains("transport retry counter exceeded");
        let good = (42..42 + LOSSY_RUNS).filter(|seed| {
            let ends = ends_of(&["--link", "udp", "--loss", &format!("5:{seed}")], &words);
            let failed: Vec<&Output> = ends.iter().filter(|end| !end.status.success()).collect();
            assert!(failed.is_empty() || failed.len() == 1 && alone(failed[0]), "seed {seed}: {failed:?}");
            failed.is_empty()
        });
        let good = good.count() as u32;
        println!("{good} of {LOSSY_RUNS} runs with 5 % loss ended well at both sides");
        assert!(good >= LOSSY_GOOD, "only {good} of {LOSSY_RUNS} runs ended well at both sides");
    }
}

#[test]
fn perftest_measures() {
    for program in ["ib_write_lat", "ib_read_lat", "ib_send_lat", "ib_atomic_lat"] {
        if ready(program, "perftest") {
            meet(&[], &[program, "-F", "-n", "50"]);
        }
    }
    for program in ["ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_atomic_bw"] {
        if ready(program, "perftest") {
            meet(&["--link", "udp"], &[program, "-F", "-n", "50", "-t", "16"]);
        }
    }
}

#[test]
fn calls_refuse_what_a_driver_refuses() {
    if let Some((_dir, program)) = built("errnos", &["-libverbs"]) {
        // Once more with freed memory written over: what still looks there finds out.
        for words in [&[&*program][..], &["env", "MALLOC_PERTURB_=165", &program]] {
            end(start(&[], words), words);
        }
    }
}

/// What the device has no use for it refuses as others do (`ci/interop alike` holds the same table beside the kernel's
/// rdma_rxe).
#[test]
fn what_the_device_lacks_is_refused_as_by_others() {
    if let Some((_dir, program)) = built("refused", &["-libverbs"]) {
        const WORKS: [&str; 6] =
            ["create_srq", "get_srq_num", "create_qp RC", "query_ece", "query_qp_data_in_order", "query_rt_values_ex"];
        let (said, _) = said_by(&["--quiet"], &[&program]);
        assert!(said.lines().count() >= 21, "{said}");
        for line in said.lines() {
            let (call, result) = line.split_once(": ").expect("a call and its errno");
            let expected = match call {
                "mlx5dv_is_supported" => "0",
                call if WORKS.contains(&call) => "ok",
                _ => "EOPNOTSUPP",
            };
            assert_eq!(result, expected, "{call}");
        }
    }
}

#[test]
fn a_poller_keeps_its_core_as_long_as_it_gives_it_away() {
    if let Some((_dir, program)) = built("polite", &["-libverbs"]) {
        let (polls, _) = said_by(&["--quiet"], &[&program]);
        // Some thousands in the two milliseconds that each of them takes, and one if it were given away at each poll.
        assert!(polls.trim().parse::<u32>().is_ok_and(|polls| polls >= 10), "{polls} polls to a yield");
    }
}

/// A program may free memory as soon as it has taken the region away: nothing copies there any more, however hard a peer
/// writes. What did would fault, as the program takes away its own right to the memory too; AddressSanitizer would name it.
#[test]
fn memory_is_the_programs_again_when_its_region_is_gone() {
    for sanitizer in [None, Some("-fsanitize=address")] {
        let flags = ["-O2", "-g", "-pthread", "-libverbs"].into_iter().chain(sanitizer);
        if let Some((_dir, program)) = built("dereg", &flags.collect::<Vec<_>>()) {
            // The library is loaded before the sanitizer, which has nothing to intercept in it, and frees little at the end.
            let words = ["env", "ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0", &program];
            let said = end(start(&[], &words), &words).stdout;
            assert!(String::from_utf8_lossy(&said).contains("1000 regions taken away, 250 of them"), "{said:?}");
        }
    }
}

/// A thread that is cancelled where it waits for an event ends there, as in rdma-core, and in no other call.
#[test]
fn threads_are_cancelled_where_they_wait() {
    if let Some((_dir, program)) = built("cancelled", &["-pthread", "-libverbs"]) {
        for link in ["shm", "udp"] {
            let (said, _) = said_by(&["--quiet", "--link", link], &[&program]);
            assert_eq!(said.lines().last(), Some("all whole"), "{link}: {said}");
        }
    }
}

#[test]
fn signals_of_a_program_are_for_its_own_threads() {
    if let Some((_dir, program)) = built("signals", &["-pthread", "-libverbs"]) {
        assert_eq!(said_by(&["--quiet"], &[&program]).0, "its own\n");
    }
}

#[test]
fn errors_are_one_line() {
    if ready("cc", "gcc") {
        let output = start(&[], &["/nonexistent"]).wait_with_output().expect("output");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.contains("cannot run /nonexistent"), "{said}");
    }
}

/// What a program said that ran with these options, on both streams.
fn said_by(options: &[&str], words: &[&str]) -> (String, String) {
    let output = end(start(options, words), words);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn sysfs_is_there_as_a_tree() {
    if !ready("ibv_devinfo", "ibverbs-utils") {
        return;
    }
    let options = ["--device-address", "127.0.98.9"];
    let (said, _) = said_by(&options, &["ls", "-R", "/sys/class/infiniband/remora0/", "/dev/infiniband"]);
    for name in ["node_guid", "ports", "gid_attrs", "ndevs", "pkeys", "counters", "uverbs0", "rdma_cm"] {
        assert!(said.lines().any(|line| line == name), "{name} in {said}");
    }
    let script = "cd /sys/class/infiniband/remora0 && pwd -P && cat ports/1/gids/1 && cd -P ../.. && cat numa_node && \
                  readlink /sys/class/infiniband/remora0 && test -c /dev/infiniband/uverbs0 && echo node";
    let (said, _) = said_by(&options, &["sh", "-c", script]);
    let device = "devices/pci0052:00/0052:00:00.0/infiniband/remora0";
    let gid = "0000:0000:0000:0000:0000:ffff:7f00:6209";
    assert_eq!(said, format!("/sys/{device}\n{gid}\n-1\n../../{device}\nnode\n"));
    if Path::new("/usr/bin/python3").exists() {
        let script = "import os; print(*[len(f) > 0 for _, _, f in os.walk('/sys/class/infiniband/remora0/ports/1/gids')], \
                      os.path.realpath('/sys/class/infiniband/remora0/../..'), sep='\\n')";
        let (said, _) = said_by(&options, &["python3", "-c", script]);
        assert_eq!(said, "True\n/sys/devices/pci0052:00/0052:00:00.0\n");
    }
}

/// Programs built against old C libraries call other functions than those of today, which no header names any more.
#[test]
fn programs_of_old_c_libraries_find_the_device() {
    if let Some((_dir, program)) = built("oldstat", &[]) {
        assert_eq!(said_by(&[], &[&program]).0, "all found\n");
    }
}

#[test]
fn files_of_the_device_are_as_a_kernels() {
    if let Some((dir, program)) = built("files", &["-pthread", "-libverbs"]) {
        let scratch = dir.path().to_str().expect("a path");
        assert_eq!(said_by(&[], &[&program, scratch]).0, "as a kernel's\n");
    }
}

#[test]
fn the_end_says_what_the_links_carried() {
    if ready("ibv_rc_pingpong", "ibverbs-utils") {
        for (options, expected) in [
            (&["--link", "udp"][..], Some("udp sent ")),
            (&["--link", "shm"], Some("shm sent ")),
            (&["--link", "shm", "--quiet"], None),
        ] {
            for output in ends_of(options, &["ibv_rc_pingpong", "-g", "1", "-n", "50"]) {
                let said = String::from_utf8_lossy(&output.stderr);
                match expected {
                    Some(words) => assert!(said.contains(words) && said.contains("packets sent again"), "{said}"),
                    None => assert_eq!(said, ""),
                }
            }
        }
    }
}

#[test]
fn an_address_in_use_is_refused_with_its_holder() {
    if ready("ib_write_lat", "perftest") {
        let options = ["--device-address", "127.0.97.9"];
        // Waits for a client, with its device open.
        let holder = Running(start(&options, &["ib_write_lat", "-R", "-p", "18777"]));
        let ps = || {
            let output = Command::new(REMORA).args(["ps", "--interval", "0"]).output().expect("remora ps runs");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        // Its command stands in the line below.
        let row = eventually("remora ps has the device", || {
            ps().split_once("127.0.97.9").map(|(before, after)| {
                let first = before.lines().last().unwrap_or_default();
                first.to_string() + &after.lines().take(2).collect::<String>()
            })
        });
        assert!(row.contains(&holder.0.id().to_string()) && row.contains("ib_write_lat"), "{row}");
        let output = any_end(start(&options, &["ibv_devices"]), &["ibv_devices"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("process {} has it (ib_write_lat", holder.0.id())), "{said}");
        drop(holder);
        assert!(!ps().contains("127.0.97.9"), "a dead process has no device");
    }
}

#[test]
fn an_address_that_a_dead_process_left_its_child_is_refused_with_the_child() {
    if let Some((_dir, program)) = built("left", &["-libverbs"]) {
        let options = ["--device-address", "127.0.97.10"];
        let (child, _) = said_by(&options, &[&program]);
        let child = child.trim();
        let output = any_end(start(&options, &["ibv_devices"]), &["ibv_devices"]);
        let said = String::from_utf8_lossy(&output.stderr);
        let ps = Command::new(REMORA).args(["ps", "--interval", "0"]).output().expect("remora ps runs");
        assert!(Command::new("kill").arg(child).status().expect("kill runs").success());
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("process {child} has it, a child of process")), "{said}");
        let ps = String::from_utf8_lossy(&ps.stdout);
        let row = ps.lines().find(|line| line.contains("127.0.97.10"));
        assert!(row.is_some_and(|row| row.trim_start().starts_with(child)), "{ps}");
    }
}

#[test]
fn what_cannot_work_ends_before_the_program_runs() {
    if ready("cc", "gcc") {
        for (options, words, expected) in [
            (&["--pcap", "/no-such-directory/pcap"][..], &["echo", "ran"][..], "its directory does not exist"),
            (&["--device-address", "8.8.8.8"], &["echo", "ran"], "no interface of this machine has it"),
            (&[], &["no-such-program"], "no directory in PATH has it"),
        ] {
            let output = any_end(start(options, words), words);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{said}");
            assert!(said.contains(expected) && said.lines().count() == 1, "{said}");
        }
    }
}
