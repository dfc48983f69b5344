//! `remora compare --kernel FILE --on PLATFORM`: a user's kernel on modelled hardware.

use std::path::Path;

use remora_kernel::Status;
use remora_lab::MeasuredRows;
use remora_model::platform::Platform;
use remora_study::modelled::ModelError;
use remora_study::on_kernel::{KernelError, KernelRow, UserKernel, kernel_on, table};
use remora_study::report::KernelBar;
use remora_wasm::KernelSet;

use crate::Failure;
use crate::args;
use crate::compare::places_on;
use crate::compare_kernel;
use crate::kernel::{name_of, reason};
use crate::kernel_build;
use crate::kernel_params::encode;
use crate::output::not_complete;
use crate::progress::{Display, stop_flag};

/// Models and prints. With `--both` the figures for programs are those of the run on this machine.
pub fn run(args: &args::Compare, file: &Path, name: &str) -> Result<(), Failure> {
    let platform = Platform::load(name).map_err(|e| Failure::Usage(e.to_string()))?;
    let module = kernel_build::load(file)?;
    let data = compare_kernel::data(args)?;
    let display = Display::new(stop_flag());
    let result = rows(args, &platform, &module, &name_of(file), data.as_deref(), &|what| {
        display.say(what);
        display.stopped()
    });
    display.clear();
    let named = |failure| match failure {
        Failure::Failed(why) => Failure::Failed(format!("{}: {why}", file.display())),
        other => other,
    };
    let modelled = result.map_err(named)?;
    let missing = modelled.missing("places");
    let MeasuredRows { rows, cut, .. } = modelled;
    let mut text = not_complete(missing.as_deref());
    let status = |row: &KernelRow| Status::from_code(row.status);
    if rows.iter().any(|row| row.failed) {
        let rows = rows.iter().map(|row| (row.platform.clone(), row.placement, status(row)));
        text += &format!("{}, no figures\n\n{}", file.display(), compare_kernel::ends("platform", rows));
    } else {
        let status = rows.first().map_or(Status::Ok, status);
        text += &format!("{}, one call at a time and 64 at once\n", file.display());
        text += &compare_kernel::ending(status, args);
        text += &format!("\n{}", table(&platform, &rows));
    }
    args.json.print(&text)?;
    if !args.both {
        let (format, version) = ("remora-compare-kernel-on/1", env!("REMORA_VERSION"));
        let kernel = file.display().to_string();
        let json = serde_json::json!({ "format": format, "version": version, "kernel": kernel, "rows": rows, "incomplete": missing });
        args.json.write(|| json.clone())?;
        let bar = |row: &KernelRow| KernelBar {
            place: row.placement,
            p50_ns: row.in_flight_1.p50_ns as f64,
            per_s: row.in_flight_64.ops_per_s,
        };
        let heading = format!("On {}, modelled", platform.name);
        let groups = match rows.iter().any(|row| row.failed) {
            true => Vec::new(),
            false => vec![(heading, rows.iter().map(bar).collect())],
        };
        compare_kernel::write_page(args, file, groups, &text, &json)?;
    }
    if let Some(error) = cut {
        return Err(named(failure(error)));
    }
    match rows.iter().find(|row| row.failed) {
        None => Ok(()),
        Some(row) => {
            let (place, why) = (row.placement, reason(status(row), &args.args));
            let hint = "see it with `remora kernel run FILE --data ... --args ... --trace`";
            Err(Failure::Failed(format!("the kernel fails at the {place}, with {why}: {hint}")))
        }
    }
}

fn rows(
    args: &args::Compare,
    platform: &Platform,
    module: &[u8],
    name: &str,
    data: Option<&[u8]>,
    progress: &dyn Fn(&str) -> bool,
) -> Result<MeasuredRows<KernelRow, KernelError>, Failure> {
    let kernel = KernelSet::default();
    let entry = kernel.deploy(name, module, args.bounds.limits(), args.bounds.isolation());
    let op = entry.map_err(|e| Failure::Failed(e.to_string()))?.op;
    let params = |data, call, out: &mut Vec<u8>| encode(&args.args, data, call, out);
    let user = UserKernel { kernel, op, data, params: &params };
    kernel_on(platform, &places_on(args, platform)?, &user, args.seed, progress).map_err(failure)
}

fn failure(error: KernelError) -> Failure {
    match error {
        KernelError::Model(ModelError::Interrupted) => Failure::Interrupted,
        other => Failure::Failed(other.to_string()),
    }
}

#[cfg(all(test, feature = "modules"))]
mod tests {
    use super::*;
    use clap::Parser;
    use remora_kernel::Placement;
    use remora_kernel::{Builtins, Kernel, Status, op};
    use remora_model::world::PairSpec;
    use remora_study::modelled::Modelled;
    use remora_wasm::{Isolation, ModuleLimits};

    /// A look-up as the GET kernel makes it, of a key in the first bucket: parameters as `GetParams` has them.
    const GET: &str = r#"(module
        (import "remora" "read" (func $read (param i32 i64 i32 i32) (result i32)))
        (import "remora" "reply" (func $reply (param i32 i32) (result i32)))
        (memory (export "memory") 1)
        (global (export "params") i32 (i32.const 4096))
        (func (export "run") (param i32) (result i32)
          ;; The entry: entries + 64 * index.
          (drop (call $read (i32.load (i32.const 4116))
            (i64.add (i64.load (i32.const 4096)) (i64.mul (i64.load32_u (i32.const 4112)) (i64.const 64)))
            (i32.const 0) (i32.const 64)))
          (if (i64.ne (i64.load (i32.const 0)) (i64.load (i32.const 4104))) (then (return (i32.const 1))))
          ;; The value, of the length that the bucket has.
          (drop (call $read (i32.load (i32.const 4120)) (i64.load (i32.const 8)) (i32.const 8192)
            (i32.load (i32.const 48))))
          (call $reply (i32.const 8192) (i32.load (i32.const 48)))))"#;

    /// Counts down from its parameter.
    const SPIN: &str = r#"(module
        (memory (export "memory") 1)
        (global (export "params") i32 (i32.const 0))
        (func (export "run") (param i32) (result i32) (local i32)
          (local.set 1 (i32.load (i32.const 0)))
          (block (loop
            (br_if 1 (i32.eqz (local.get 1)))
            (local.set 1 (i32.sub (local.get 1) (i32.const 1)))
            (br 0)))
          (i32.const 0)))"#;

    fn deployed(text: &str) -> (KernelSet, u64) {
        let (set, bytes) = (KernelSet::default(), wat::parse_str(text).unwrap());
        let op = set.deploy("k", &bytes, ModuleLimits::default(), Isolation::Reused).unwrap().op;
        (set, op)
    }

    /// One call: its answer, its time in nanoseconds, and what its hardware served.
    fn call<K>(
        platform: &Platform,
        place: Placement,
        kernel: (K, u64),
        get: bool,
        n: u32,
    ) -> (Vec<u8>, f64, Vec<String>)
    where
        K: Kernel + Clone + 'static,
    {
        let op = kernel.1;
        let mut model = Modelled::with_kernel(&PairSpec::new(platform, 0, 7).unwrap(), place, kernel).unwrap();
        let pair = model.pair();
        let mut params = n.to_le_bytes().to_vec();
        if get {
            let mut builder = remora_store::hash::TableBuilder::new(1);
            builder.insert(77, &[5; 100]).unwrap();
            let layout = builder.build().unwrap();
            let [entries, values] =
                [layout.entries_bytes(), layout.values_bytes()].map(|n| pair.alloc(n as u64).unwrap());
            let at = |va, key| remora_store::Place { va, key };
            let places = (at(entries.va(), entries.key()), at(values.va(), values.key()));
            let (table, image) = layout.place(places.0, places.1);
            entries.write(entries.va(), &image.entries).unwrap();
            values.write(values.va(), &image.values).unwrap();
            params = remora_kernel::GetParams::encode(&table.get_params(77)).to_vec();
        }
        pair.submit(place, op, &params, 0).unwrap();
        let mut came = None;
        assert!(
            pair.poll(&mut |done| {
                assert_eq!(done.status, Status::Ok);
                came = Some((done.reply.to_vec(), done.latency.as_ns()));
            })
            .unwrap()
        );
        let (reply, time) = came.unwrap();
        let usage = pair.usage();
        let served = usage.iter().flatten().map(|usage| format!("{} {}", usage.name, usage.served)).collect();
        (reply, time, served)
    }

    const PLACES: [(&str, Placement, &str, &str); 5] = [
        ("strom-10g", Placement::Client, "module.core.instruction", "client.core.clock"),
        ("strom-10g", Placement::Nic, "module.logic.instruction", "nic.pipeline.clock"),
        ("strom-10g", Placement::Host, "module.core.instruction", "host.core.clock"),
        ("rambda", Placement::Accelerator, "module.logic.instruction", "accel.clock"),
        ("bluefield2", Placement::Nic, "module.core.instruction", "host.core.clock"),
    ];

    #[test]
    fn a_module_is_charged_the_accesses_of_the_native_kernel() {
        for (name, place, instruction, _) in PLACES {
            let free = Platform::load(name).unwrap().with(&[(instruction, 0.0)]).unwrap();
            let native = call(&free, place, (Builtins, op::GET), true, 0);
            let module = call(&free, place, deployed(GET), true, 0);
            assert_eq!(native.0, [5; 100], "{name} {place:?}");
            assert_eq!((&native.0, native.1), (&module.0, module.1), "{name} {place:?}");
            // Computing nothing is a request of its own to a core or a unit; every other count is the same.
            let accesses = |served: &[String]| -> Vec<String> {
                let computing = ["cores ", "NIC cores ", "NIC kernels ", "accelerator "];
                let of = |line: &&String| !computing.iter().any(|name| line.starts_with(name));
                served.iter().filter(of).cloned().collect()
            };
            assert_eq!(accesses(&native.2), accesses(&module.2), "{name} {place:?}");
            assert!(accesses(&module.2).len() > 4);
        }
    }

    #[test]
    fn instructions_take_their_cycles() {
        for (name, place, instruction, clock) in PLACES {
            let platform = Platform::load(name).unwrap().with(&[("client.core.poll", 0.0)]).unwrap();
            let value = |path: &str| platform.params.get(path).unwrap().value;
            // A turn of the loop is 8 counted instructions: get, eqz, br_if, get, const, sub, set, br. All in one slice of
            // the runtime's, after which a call gives way.
            let time = |platform: &Platform, n: u32| call(platform, place, deployed(SPIN), false, n).1;
            let turn = (time(&platform, 110) - time(&platform, 10)) / 100.0;
            let speed = if name == "bluefield2" { value("nic.cores.speed") } else { 1.0 };
            let cycle = value(instruction) / value(clock) * 1e9 / speed;
            let counted = turn / cycle;
            assert!((counted - 8.0).abs() < 0.02, "{name} {place:?}: {counted}");
            // Twice the cycles: twice the time.
            let slow = platform.with(&[(instruction, 2.0 * value(instruction))]).unwrap();
            let slow_turn = (time(&slow, 110) - time(&slow, 10)) / 100.0;
            assert!((slow_turn / turn - 2.0).abs() < 1e-3, "{name}: {turn} ns, {slow_turn} ns");
            // Far more than a slice: it goes on by itself.
            let long = (time(&platform, 40_010) - time(&platform, 10)) / 40_000.0;
            assert!((1.0..1.1).contains(&(long / turn)), "{name} {place:?}: {turn} ns, {long} ns");
        }
    }

    #[test]
    fn a_kernel_runs_in_every_place_of_a_platform() {
        let args = crate::args::Args::try_parse_from(["remora", "compare", "--kernel", "k.wat", "--args", "u32:5"]);
        let Some(crate::args::Command::Compare(args)) = args.unwrap().command else { panic!("compare") };
        let module = wat::parse_str(SPIN).unwrap();
        for (name, places) in [("strom-10g", 3), ("rambda", 4)] {
            let rows =
                rows(&args, &Platform::load(name).unwrap(), &module, "k", None, &|_| false).unwrap().whole().unwrap();
            assert_eq!(rows.len(), places);
            assert!(rows.iter().all(|row| row.status == 0 && row.in_flight_64.verified == 2000));
        }
        // Whoever wants no more gets what there is.
        let platform = Platform::load("strom-10g").unwrap();
        let cut = super::rows(&args, &platform, &module, "k", None, &|next| next.contains("the host")).unwrap();
        assert_eq!(cut.missing("places").as_deref(), Some("interrupted; 2 of 3 places were measured"));
    }
}
