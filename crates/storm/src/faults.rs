//! What each fault does to a running cluster.

use crate::cluster::{Cluster, Event};
use crate::disk::Disk;
use crate::engine::Engine;
use crate::events::{SECOND, Time};
use crate::nemesis::{StormFault, is_spare};
use crate::rng::{Purpose, Rng};

impl<E: Engine> Cluster<'_, E> {
    /// A scheduled fault begins.
    pub(crate) fn fault(&mut self, index: usize) {
        let event = &self.plan.schedule[index];
        let mut rng = Rng::new(event.seed, Purpose::Fault);
        let fault = event.fault;
        if !self.begin(fault, &mut rng) {
            return;
        }
        self.faults[fault.kind(self.nodes.len())] += 1;
        self.story.say(self.now, || format!("FAULT: {fault}"));
        if let Some(lasts) = fault.lasts() {
            self.queue.push(self.now + lasts, Event::FaultEnds { index });
        }
    }

    /// Says whether it could happen.
    fn begin(&mut self, fault: StormFault, rng: &mut Rng) -> bool {
        match fault {
            StormFault::Crash { nodes, down, keep } => return self.end_nodes(nodes, down, Some((rng, keep))),
            StormFault::Kill { nodes, down } => return self.end_nodes(nodes, down, None),
            StormFault::Pause { node, lasts } => {
                self.pause(node, self.now + lasts);
            }
            StormFault::PauseInTurn { node, lasts } => self.pause_in_turn(node, self.now + lasts),
            StormFault::Partition { from, to, both, .. } => self.cut(from, to, both, true),
            StormFault::Weather { weather, .. } => self.net.set_weather(weather),
            StormFault::SlowLink { from, to, extra, .. } => self.net.slow(1 << from, to, extra),
            StormFault::SlowDisk { node, extra, .. } => self.nodes[node].slow_disk = extra,
            StormFault::FailSync { node, down } => self.nodes[node].fail_sync = Some(down),
            StormFault::BadSectors { node, count, down } => {
                return self.spoil(node, down, rng, |disk, rng| disk.spoil(rng, count) > 0);
            }
            StormFault::Wipe { node, down } => {
                return self.spoil(node, down, rng, |disk, _| {
                    disk.wipe();
                    true
                });
            }
            StormFault::FullDisk { node, .. } if self.stands_still(node) => return false,
            StormFault::FullDisk { node, left, .. } => self.set_room(node, Some(left)),
            StormFault::Skew { node, ppm, .. } => self.skew(node, ppm),
        }
        true
    }

    /// A fault that lasts a while is over.
    pub(crate) fn fault_ends(&mut self, index: usize) {
        if self.calm {
            return;
        }
        match self.plan.schedule[index].fault {
            StormFault::Pause { node, .. } | StormFault::PauseInTurn { node, .. } => self.resume(node),
            StormFault::Partition { from, to, both, .. } => self.cut(from, to, both, false),
            StormFault::Weather { .. } => self.net.calm(),
            StormFault::SlowLink { from, to, .. } => self.net.slow(1 << from, to, 0),
            StormFault::SlowDisk { node, .. } => self.nodes[node].slow_disk = 0,
            StormFault::FullDisk { node, .. } => self.set_room(node, None),
            StormFault::Skew { node, .. } => self.skew(node, 0),
            StormFault::Crash { .. }
            | StormFault::Kill { .. }
            | StormFault::FailSync { .. }
            | StormFault::BadSectors { .. }
            | StormFault::Wipe { .. } => return,
        }
        self.story.say(self.now, || format!("over: {}", self.plan.schedule[index].fault));
    }

    /// All faults end; nodes that are down start, but for those that stay absent.
    pub(crate) fn calm_down(&mut self) {
        self.calm = true;
        self.story.say(self.now, || "CALM: all faults end".into());
        self.net.heal();
        // From now on clients do not give up.
        let patient = self.clients.iter_mut().filter(|client| client.watches.is_none());
        patient.for_each(|client| client.requests.set_timeout(Time::MAX));
        let before = self.holders();
        // A majority that holds the state stays: without anyone, most models wait for all of the last members to come
        // back, and a node with a damaged log has no vote until it has caught up.
        let stay = (before & !self.plan.absent).count_ones() as usize;
        let absent = if stay > self.nodes.len() / 2 { self.plan.absent } else { 0 };
        for node in 0..self.nodes.len() {
            self.nodes[node].slow_disk = 0;
            self.nodes[node].fail_sync = None;
            self.set_room(node, None);
            self.skew(node, 0);
            if absent >> node & 1 == 1 {
                self.nodes[node].disk.kill();
                self.stop(node, None);
                continue;
            }
            // Also one that was still to come: nothing would end it.
            let pauses = &mut self.nodes[node].pauses;
            (pauses.until, pauses.next) = (0, None);
            self.resume(node);
            self.start(node);
        }
        self.note_blackout(before);
        for node in (0..self.nodes.len()).filter(|node| absent >> node & 1 == 0) {
            self.last_reads.extend((0..self.plan.workload.keys).map(|key| (node, key)));
        }
    }

    /// A sync has failed: what was to be synced may be on the disk or not, and the node ends rather than to go on.
    pub(crate) fn sync_failed(&mut self, node: usize, down: Time) {
        self.story.say(self.now, || format!("a sync of node {node} fails"));
        let mut rng = Rng::new(self.plan.seed ^ self.now, Purpose::Fault);
        self.end_nodes(1 << node, down, Some((&mut rng, 500_000)));
    }

    /// Ends those of `nodes` that are up; the machines with them if there is a chance to keep unsynced sectors.
    fn end_nodes(&mut self, nodes: u64, down: Time, mut machine: Option<(&mut Rng, u32)>) -> bool {
        let before = self.holders();
        let mut any = false;
        for node in (0..self.nodes.len()).filter(|node| nodes >> node & 1 == 1) {
            if self.nodes[node].engine.is_none() {
                continue;
            }
            any = true;
            match &mut machine {
                Some((rng, keep)) => self.nodes[node].disk.crash(rng, *keep),
                None => self.nodes[node].disk.kill(),
            }
            // Not all at the same moment.
            let extra = machine.as_mut().map_or(0, |(rng, _)| rng.below(SECOND / 10));
            self.stop(node, Some(down + extra));
        }
        self.note_blackout(before);
        any
    }

    /// One copy is damaged at a time, until its node is a member again, and only a [spare](is_spare) one: what the protocol
    /// survives.
    fn spoil(
        &mut self,
        node: usize,
        down: Time,
        rng: &mut Rng,
        damage: impl FnOnce(&mut Disk, &mut Rng) -> bool,
    ) -> bool {
        let alone = self.nodes.iter().fold(0, |set, node| set | node.alone);
        let spare = is_spare(node, self.nodes.len(), self.members, alone);
        let place = &mut self.nodes[node];
        if self.damaged != 0 || !spare || place.engine.is_none() || !damage(&mut place.disk, rng) {
            return false;
        }
        self.damaged = 1 << node;
        self.end_nodes(1 << node, down, Some((rng, 500_000)))
    }

    fn cut(&mut self, from: u64, to: u64, both: bool, on: bool) {
        self.net.cut(from, to, on);
        if both {
            self.net.cut(to, from, on);
        }
    }

    fn stands_still(&self, node: usize) -> bool {
        self.nodes[node].pauses.until > self.now
    }

    /// A node's disk has room for so many bytes more, or for all there may be.
    fn set_room(&mut self, node: usize, room: Option<usize>) {
        self.nodes[node].room = room;
        let local = self.local(node);
        if let Some(engine) = &mut self.nodes[node].engine {
            engine.set_room(local, room);
        }
        if !self.stands_still(node) {
            self.pump(node);
        }
    }

    fn skew(&mut self, node: usize, ppm: i32) {
        self.nodes[node].clock.set_rate(self.now, ppm);
        self.arm(node);
    }
}
