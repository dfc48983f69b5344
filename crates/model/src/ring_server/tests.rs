use super::*;
use crate::platform::Platform;

/// Walks of a list: three reads, each of another line of 640 MB.
struct Walks(u64);

impl RingLoad for Walks {
    fn next(&mut self, request: &mut RingRequest) {
        (request.request, request.reply) = (16, 16);
        for _ in 0..3 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            request.accesses.push(RingAccess::read((self.0 >> 33) % 10_000_000 * 64, 64));
        }
    }
}

fn threads(threads: usize, batch: usize) -> ThreadSpec {
    ThreadSpec { threads, batch, misses: 0, cache_bytes: 0, cached_bytes: 0, disturbed: false }
}

fn accelerator(memory: ApplicationMemory, notification: Notification) -> Unit {
    Unit::Accelerator(AccelSpec { memory, notification, doorbell_batch: 32, outstanding: 0 })
}

fn walked(platform: &Platform, unit: Unit, feed: Feed) -> RingFigures {
    let spec = RingServerSpec { unit, feed, memory: HostMemory::Dram, past_cache: false, requests: 8_000, seed: 1 };
    run(platform, &spec, &mut Walks(1)).unwrap()
}

const SOCKET: Feed = Feed::Socket { rings: 16, window: 32 };

fn network(window: u32) -> Feed {
    Feed::Network(NetworkSpec { clients: 10, window, together: true })
}

#[test]
fn all_units_serve_and_the_same_seed_gives_the_same_figures() {
    let platform = Platform::load("rambda").unwrap();
    let units = [
        Unit::Host(threads(8, 16)),
        Unit::Card(ThreadSpec { cache_bytes: 1 << 20, cached_bytes: 64, ..threads(8, 16) }),
        accelerator(ApplicationMemory::Host, Notification::Cpoll),
        accelerator(ApplicationMemory::Host, Notification::Polling),
        accelerator(ApplicationMemory::HostByCxl, Notification::Cpoll),
        accelerator(ApplicationMemory::LocalDdr, Notification::Cpoll),
        accelerator(ApplicationMemory::LocalHbm, Notification::Cpoll),
    ];
    for unit in units {
        for feed in [SOCKET, network(8)] {
            let figures = walked(&platform, unit.clone(), feed);
            assert_eq!(figures.latencies.len(), 8_000);
            assert!(figures.per_s > 1e5, "{unit:?} {feed:?}: {}", figures.per_s);
            assert_eq!(figures.per_s, walked(&platform, unit.clone(), feed).per_s);
        }
    }
}

#[test]
fn cores_scale_and_batches_hide_latency() {
    let platform = Platform::load("rambda").unwrap();
    let rate = |cores, batch| walked(&platform, Unit::Host(threads(cores, batch)), SOCKET).per_s;
    let (one, eight) = (rate(1, 16), rate(8, 16));
    assert!((7.2..8.3).contains(&(eight / one)), "{one} and {eight}");
    assert!(one > 1.3 * rate(1, 1), "{one}");
}

#[test]
fn polling_takes_requests_of_the_controller_that_cpoll_leaves() {
    let platform = Platform::load("rambda").unwrap();
    let rate = |notification| walked(&platform, accelerator(ApplicationMemory::Host, notification), SOCKET).per_s;
    let (cpoll, polling) = (rate(Notification::Cpoll), rate(Notification::Polling));
    assert!(cpoll > polling, "{cpoll} and {polling}");
}

#[test]
fn a_poller_that_needs_no_time_looks_once_a_cycle_and_waits_for_the_link() {
    let platform = Platform::load("rambda").unwrap().with(&[("accel.controller.poll_cycles", 0.0)]).unwrap();
    let unit = accelerator(ApplicationMemory::Host, Notification::Polling);
    let figures = walked(&platform, unit, network(16));
    assert!(figures.events < 10_000_000, "{} events", figures.events);
}

#[test]
fn doorbells_for_many_replies_matter() {
    let platform = Platform::load("rambda").unwrap();
    let rate = |doorbell_batch| {
        let spec = AccelSpec {
            memory: ApplicationMemory::Host,
            notification: Notification::Cpoll,
            doorbell_batch,
            outstanding: 0,
        };
        let feed = Feed::Network(NetworkSpec { clients: 10, window: 32, together: false });
        walked(&platform, Unit::Accelerator(spec), feed).per_s
    };
    // A doorbell each 500 ns is 2 M/s.
    let (one, many) = (rate(1), rate(16));
    assert!((1.8e6..2.1e6).contains(&one) && many > 3.0 * one, "{one} and {many}");
}

#[test]
fn a_platform_without_the_hardware_is_refused() {
    let platform = Platform::load("strom-10g").unwrap();
    let unit = accelerator(ApplicationMemory::Host, Notification::Cpoll);
    let spec =
        RingServerSpec { unit, feed: SOCKET, memory: HostMemory::Dram, past_cache: false, requests: 10, seed: 1 };
    let error = run(&platform, &spec, &mut Walks(1)).unwrap_err().to_string();
    assert_eq!(error, "platform strom-10g describes no server of rings");
}

#[test]
fn rings_in_the_cache_cost_persistent_memory_a_block_for_each_line_that_leaves() {
    let platform = Platform::load("rambda").unwrap().with(&[("accel.issue_cycles", 1.0)]).unwrap();
    let rate = |past_cache| {
        let unit = accelerator(ApplicationMemory::Host, Notification::Cpoll);
        let memory = HostMemory::Persistent;
        let spec = RingServerSpec { unit, feed: SOCKET, memory, past_cache, requests: 8_000, seed: 1 };
        run(&platform, &spec, &mut Walks(1)).unwrap().per_s
    };
    // Three blocks of 256 B for a walk and one for the line that leaves, at 39.4 GB/s: 38.5 M/s.
    let (past, through) = (rate(true), rate(false));
    assert!((through / 38.5e6 - 1.0).abs() < 0.08 && past > 1.05 * through, "{past} and {through}");
}

/// One read of a line somewhere in so many bytes.
struct Reads(u64, u64);

impl RingLoad for Reads {
    fn next(&mut self, request: &mut RingRequest) {
        (request.request, request.reply) = (16, 16);
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        request.accesses.push(RingAccess::read((self.0 >> 33) % (self.1 / 64) * 64, 64));
    }
}

#[test]
fn a_card_keeps_what_was_used_before_the_run() {
    let platform = Platform::load("rambda").unwrap();
    let rate = |cache_bytes| {
        let unit = Unit::Card(ThreadSpec { cache_bytes, cached_bytes: 64, ..threads(8, 16) });
        let spec = RingServerSpec {
            unit,
            feed: SOCKET,
            memory: HostMemory::Dram,
            past_cache: false,
            requests: 8_000,
            seed: 1,
        };
        run(&platform, &spec, &mut Reads(1, 32 << 20)).unwrap().per_s
    };
    // Twice what is asked for, half of it, and all on the card.
    let (twice, half, all) = (rate(64 << 20), rate(16 << 20), rate(0));
    assert!(twice > 0.95 * all && half < 0.7 * all, "{twice}, {half} and {all}");
}

/// Forty rows of four lines at once.
struct Rows(u64);

impl RingLoad for Rows {
    fn next(&mut self, request: &mut RingRequest) {
        (request.request, request.reply) = (16, 16);
        for row in 0..40 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let read = RingAccess::read((self.0 >> 33) % 10_000_000 * 256, 256);
            request.accesses.push(RingAccess { together: row > 0, ..read });
        }
    }
}

#[test]
fn cores_with_many_lines_under_way_fill_memory() {
    let platform = Platform::load("rambda").unwrap();
    let gb_per_s = |cores| {
        let unit = Unit::Host(ThreadSpec { misses: 20, ..threads(cores, 1) });
        let spec = RingServerSpec {
            unit,
            feed: SOCKET,
            memory: HostMemory::Dram,
            past_cache: false,
            requests: 2_000,
            seed: 1,
        };
        run(&platform, &spec, &mut Rows(1)).unwrap().per_s * 40.0 * 256.0 / 1e9
    };
    // Eight rounds of twenty lines, each 85 ns, beside 172 ns of other work; sixteen cores would take more than there is.
    let (one, many) = (gb_per_s(1), gb_per_s(16));
    assert!((one / (40.0 * 256.0 / (8.0 * 85.0 + 172.0)) - 1.0).abs() < 0.06, "{one}");
    assert!((110.0..120.5).contains(&many), "{many}");
}
