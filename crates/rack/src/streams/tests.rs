//! Two ends of streams whose segments come in any order.

use super::*;
use proptest::prelude::*;

const WINDOW: u64 = 256;
const NICS: u16 = 3;

/// Hears a record, wherever the last one ended.
fn hear(owner: &mut Owner, record: Record) -> Result<(), Breach> {
    let mut bytes = Vec::new();
    record.emit(&mut bytes);
    owner.streams.control.accept(owner.streams.control.ready().end, bytes.len() as u32, |_| ()).unwrap();
    owner.streams.hear(&bytes)
}

fn policy() -> FlowPolicy {
    FlowPolicy { window: WINDOW, segment: 40, depth: 120, entries: 4, subflows: 6, ..FlowPolicy::default() }
}

fn byte(flow: FlowId, side: usize, at: u64) -> u8 {
    (flow.0.wrapping_mul(31) + side as u64 * 7 + at.wrapping_mul(13) + at / 256) as u8
}

struct Owner {
    streams: Streams,
    /// What is in the windows, by stream: to send, and what came.
    out: BTreeMap<FlowId, Vec<u8>>,
    into: BTreeMap<FlowId, Vec<u8>>,
    under_way: Vec<Segment>,
    begun: BTreeSet<FlowId>,
    gone: BTreeSet<FlowId>,
    read: BTreeMap<FlowId, u64>,
}

impl Owner {
    fn new(calls: bool) -> Self {
        let config = StreamsConfig { policy: policy(), nics: NICS, calls, most: 4, first: 0 };
        let mut streams = Streams::new(config, 0);
        (0..NICS).for_each(|nic| streams.restored(0, NicId(nic)));
        let window = || BTreeMap::from([(CONTROL, vec![0; WINDOW as usize])]);
        let (begun, gone) = (BTreeSet::new(), BTreeSet::new());
        Self { streams, out: window(), into: window(), under_way: vec![], begun, gone, read: BTreeMap::new() }
    }

    fn windows(&mut self, flow: FlowId) {
        self.begun.insert(flow);
        self.out.insert(flow, vec![0; WINDOW as usize]);
        self.into.insert(flow, vec![0; WINDOW as usize]);
    }

    fn events(&mut self, refuse: bool) {
        while let Some(event) = self.streams.poll_event() {
            match event {
                StreamEvent::Asked { flow, .. } => {
                    self.windows(flow);
                    self.streams.answer(flow, if refuse { Err(Refusal::Refused) } else { Ok(()) });
                }
                StreamEvent::Reset(flow) => self.streams.close(flow),
                StreamEvent::Gone(flow) => assert!(self.gone.insert(flow), "{flow:?} is gone twice"),
                StreamEvent::Answered { .. } | StreamEvent::Changed(_) => {}
            }
        }
    }

    fn send(&mut self, now: u64) {
        while let Some((at, bytes)) = self.streams.poll_control() {
            let window = self.out.get_mut(&CONTROL).unwrap();
            (at..).zip(bytes).for_each(|(at, byte)| window[(at % WINDOW) as usize] = byte);
        }
        while let Some(segment) = self.streams.poll_segment(now) {
            self.under_way.push(segment);
        }
    }

    fn write(&mut self, side: usize, flow: FlowId, most: u64) {
        let room = self.streams.room(flow);
        let end = room.end.min(room.start + most);
        for at in room.start..end {
            self.out.get_mut(&flow).unwrap()[(at % WINDOW) as usize] = byte(flow, side, at);
        }
        self.streams.wrote(flow, end - room.start);
    }

    fn read(&mut self, side: usize, flow: FlowId, most: u64) {
        let ready = self.streams.ready(flow);
        let end = ready.end.min(ready.start + most);
        for at in ready.start..end {
            assert_eq!(self.into[&flow][(at % WINDOW) as usize], byte(flow, 1 - side, at), "{flow:?} at {at}");
        }
        self.streams.took(flow, end - ready.start);
        self.read.insert(flow, end);
    }
}

/// One segment arrives, and its sender hears of it if `heard`.
fn deliver(owners: &mut [Owner; 2], from: usize, index: usize, now: u64, heard: bool) {
    if owners[from].under_way.is_empty() {
        return;
    }
    let index = index % owners[from].under_way.len();
    let segment = owners[from].under_way[index];
    let bytes: Vec<u8> = (segment.offset..segment.offset + u64::from(segment.len))
        .map(|at| owners[from].out[&segment.flow][(at % WINDOW) as usize])
        .collect();
    let to = &mut owners[1 - from];
    let window = to.into.entry(segment.flow).or_insert_with(|| vec![0; WINDOW as usize]);
    let fresh = |range: Range<u64>| {
        for at in range {
            window[(at % WINDOW) as usize] = bytes[(at - segment.offset) as usize];
        }
    };
    to.streams.accept(segment.flow, segment.offset, segment.len, fresh).unwrap();
    let ready = to.streams.control_ready();
    let records: Vec<u8> = ready.map(|at| to.into[&CONTROL][(at % WINDOW) as usize]).collect();
    to.streams.hear(&records).unwrap();
    let limit = to.streams.control_limit();
    owners[from].streams.allow_control(limit);
    if heard {
        owners[from].under_way.remove(index);
        owners[from].streams.done(now, segment.tag);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    /// Whatever comes in what order by which NIC: every byte is right, and in the end nothing is left.
    #[test]
    fn streams_bring_what_was_written(
        steps in prop::collection::vec((0..12u8, 0..2usize, any::<u16>(), 1..200u64), 1..400),
    ) {
        let mut owners = [Owner::new(true), Owner::new(false)];
        let address = SocketAddr::from(([10, 0, 0, 1], 80));
        let mut now = 0;
        for (what, side, index, len) in steps {
            now += 1000;
            let flows: Vec<FlowId> = owners[side].streams.streams.keys().copied().collect();
            let flow = flows.get(usize::from(index) % flows.len().max(1)).copied();
            match (what, flow) {
                (0, _) => if let Some(flow) = owners[side].streams.open(address, address, false) {
                    owners[side].windows(flow);
                },
                (1..=3, Some(flow)) => owners[side].write(side, flow, len),
                (4..=5, Some(flow)) => owners[side].read(side, flow, len),
                (6, Some(flow)) if len < 60 => owners[side].streams.end(flow),
                (7, Some(flow)) if len < 20 => owners[side].streams.close(flow),
                (8, _) if len < 30 => {
                    let nic = NicId(index % NICS);
                    // Of what it had under way, some arrived without its sender's hearing of it.
                    if index % 2 == 0 {
                        deliver(&mut owners, side, usize::from(index), now, false);
                    }
                    owners[side].under_way.retain(|segment| segment.nic != nic);
                    owners[side].streams.failed(now, nic);
                    owners[side].streams.restored(now, nic);
                }
                _ => deliver(&mut owners, side, usize::from(index), now, true),
            }
            owners.iter_mut().for_each(|owner| owner.events(index % 8 == 0));
            owners.iter_mut().for_each(|owner| owner.send(now));
        }
        // All end what they have, and read to the end.
        for round in 0..20_000usize {
            now += 1000;
            for side in 0..2 {
                let flows: Vec<FlowId> = owners[side].streams.streams.keys().copied().collect();
                for flow in flows {
                    owners[side].streams.end(flow);
                    owners[side].read(side, flow, WINDOW);
                    if owners[side].streams.is_finished(flow) {
                        owners[side].streams.close(flow);
                    }
                }
                deliver(&mut owners, side, round, now, true);
                owners[side].events(false);
                owners[side].send(now);
            }
            if owners.iter().all(|owner| owner.streams.count() == 0 && owner.under_way.is_empty()) {
                break;
            }
        }
        for owner in &mut owners {
            owner.events(false);
            prop_assert_eq!(owner.streams.count(), 0);
            prop_assert_eq!(&owner.begun, &owner.gone, "windows that are needed no more");
        }
    }
}

#[test]
fn who_breaks_the_order_is_found_out() {
    let mut owner = Owner::new(true);
    let address = SocketAddr::from(([10, 0, 0, 1], 80));
    let open = |flow| Record::Open { flow: FlowId(flow), to: address, from: address, goes_on: false };
    assert_eq!(hear(&mut owner, open(2)), Err(Breach::Order), "a number of this end's");
    assert_eq!(hear(&mut owner, open(3)), Ok(()));
    assert_eq!(hear(&mut owner, open(3)), Err(Breach::Order), "twice");
    assert_eq!(hear(&mut owner, Record::End { flow: FlowId(3), at: 10 }), Ok(()));
    assert_eq!(owner.streams.accept(FlowId(3), 5, 6, |_| ()), Err(Breach::Order), "beyond the end");
    assert_eq!(hear(&mut owner, Record::End { flow: FlowId(3), at: 11 }), Err(Breach::Order), "another end");
    assert!(matches!(owner.streams.accept(CONTROL, 0, 1 << 20, |_| ()), Err(Breach::Beyond(_))));
    for flow in [5, 7, 9, 11, 13] {
        assert_eq!(hear(&mut owner, open(flow)), Ok(()));
    }
    assert_eq!(owner.streams.count(), 4, "no more than there may be");
    assert_eq!(hear(&mut owner, Record::Reset { flow: FlowId(99), at: 0 }), Ok(()), "one that is gone");
}

#[test]
fn another_that_begins_anew_loses_all_streams() {
    let mut owner = Owner::new(true);
    let address = SocketAddr::from(([10, 0, 0, 1], 80));
    let flow = owner.streams.open(address, address, false).unwrap();
    owner.streams.restart(1);
    let events: Vec<StreamEvent> = std::iter::from_fn(|| owner.streams.poll_event()).collect();
    let answer = Err(Refusal::TimedOut);
    assert_eq!(events, [StreamEvent::Answered { flow, answer }, StreamEvent::Gone(flow)]);
    assert!(owner.streams.open(address, address, false).unwrap().0 > flow.0, "numbers are not used twice");
    // Nor are those that its owner may still speak of used by the other end.
    let record = |flow| Record::Open { flow: FlowId(flow), to: address, from: address, goes_on: false };
    assert_eq!(hear(&mut owner, record(3)), Ok(()));
    owner.streams.answer(FlowId(3), Ok(()));
    owner.streams.restart(2);
    assert_eq!(hear(&mut owner, record(3)), Err(Breach::Order));
    let first = |first| Streams::new(StreamsConfig { first, ..owner.streams.config }, 0).next;
    assert_eq!((first(0), first(7), first(u64::MAX)), (2, 16, (1 << 63)));
}

/// As with TCP: what a program sent before it gave up is read before that is told of.
#[test]
fn who_gives_up_is_read_to_the_place_where_he_did() {
    let mut owners = [Owner::new(true), Owner::new(false)];
    let address = SocketAddr::from(([10, 0, 0, 1], 80));
    let flow = owners[0].streams.open(address, address, false).unwrap();
    owners[0].windows(flow);
    let settle = |owners: &mut [Owner; 2]| {
        for round in 0..200 {
            owners.iter_mut().for_each(|owner| {
                while let Some(event) = owner.streams.poll_event() {
                    if let StreamEvent::Asked { flow, .. } = event {
                        owner.windows(flow);
                        owner.streams.answer(flow, Ok(()));
                    }
                }
                owner.send(round);
            });
            // What was said last comes first.
            for side in 0..2 {
                let last = owners[side].under_way.len().saturating_sub(1);
                deliver(owners, side, last, round, true);
            }
        }
    };
    settle(&mut owners);
    owners[0].write(0, flow, WINDOW);
    settle(&mut owners);
    owners[1].read(1, flow, 100);
    settle(&mut owners);
    // Of what the reader has no room for nothing is heard.
    owners[0].write(0, flow, 150);
    owners[0].streams.close(flow);
    settle(&mut owners);
    assert!(!owners[1].streams.is_lost(flow));
    assert!(owners[1].streams.room(flow).is_empty(), "he reads nothing any more");
    owners[1].read(1, flow, WINDOW);
    assert_eq!(owners[1].read[&flow], WINDOW + 100);
    assert!(owners[1].streams.is_lost(flow));
    owners[1].streams.close(flow);
    settle(&mut owners);
    assert_eq!(owners.map(|owner| owner.streams.count()), [0, 0]);
}

/// Each gap would have to be remembered, and a window has room for many of one byte.
#[test]
fn who_leaves_more_gaps_than_can_be_under_way_is_found_out() {
    let policy = FlowPolicy { window: 1 << 20, ..policy() };
    let config = StreamsConfig { policy, nics: NICS, calls: true, most: 4, first: 0 };
    let address = SocketAddr::from(([10, 0, 0, 1], 80));
    let most = super::NICS as u64 * u64::from(policy.entries);
    for flow in [CONTROL, FlowId(3)] {
        let mut owner = Owner { streams: Streams::new(config, 0), ..Owner::new(true) };
        hear(&mut owner, Record::Open { flow: FlowId(3), to: address, from: address, goes_on: false }).unwrap();
        let begin = if flow == CONTROL { owner.streams.control_ready().end } else { 0 };
        let mut came = (1..).map(|n| owner.streams.accept(flow, begin + 2 * n, 1, |_| ()));
        assert_eq!(came.position(|came| came == Err(Breach::Gaps)), Some(most as usize), "{flow:?}");
    }
}
