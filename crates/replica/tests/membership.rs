//! Rules of membership that take rare moments to matter, at one node.

use remora_replica::ddp::View;
use remora_replica::member::{Ballot, Durable, MemberOutput, Membership, Notice, Standing, Timing};
use remora_replica::types::{NodeId, NodeSet};

const MS: u64 = 1_000_000;
const ME: NodeId = NodeId(1);
const TIMING: Timing =
    Timing { beat: 20 * MS, lease: 100 * MS, term: 101 * MS, suspect: 200 * MS, recover: Some(4000 * MS) };

fn member(now: u64, durable: Durable, status: Standing) -> Membership {
    Membership::new(now, ME, NodeSet::first(5), TIMING, durable, status)
}

/// What it asks for, everything durable at once.
fn drain(member: &mut Membership, now: u64) -> Vec<MemberOutput> {
    let mut all = Vec::new();
    while let Some(output) = member.poll() {
        if let MemberOutput::Persist(number, _) = output {
            member.persisted(now, number);
        }
        all.push(output);
    }
    all
}

fn others() -> impl Iterator<Item = NodeId> {
    NodeSet::first(5).without(ME).iter()
}

#[test]
fn a_view_that_was_accepted_is_proposed_even_if_nobody_wants_it_any_more() {
    let view = View::first(NodeSet::first(5));
    let mut member = member(0, Durable { view, ..Durable::default() }, Standing::Serving);
    let (ballot, proposer) = (Ballot { round: 1, node: NodeId(2) }, NodeId(2));
    let next = View { epoch: 2, members: NodeSet(0b01110), learners: NodeSet::EMPTY, recovery: false };
    // After a restart, leases from before it must have run out.
    let begin = 2 * TIMING.term;
    member.handle(begin, proposer, Notice::Prepare(view, ballot, NodeSet(0b10001)));
    member.handle(begin, proposer, Notice::Accept(ballot, next));
    assert!(drain(&mut member, begin).contains(&MemberOutput::Send(proposer, Notice::Accepted(ballot, next))));
    // Then all are back, and the proposer has dropped it.
    let mut asked = Vec::new();
    for now in (begin..begin + 1000 * MS).step_by(20 * MS as usize) {
        others().for_each(|node| member.handle(now, node, Notice::Beat(now, 1, Standing::Serving, false)));
        member.timeout(now);
        asked.extend(drain(&mut member, now));
    }
    let grants = |output: &MemberOutput| matches!(output, MemberOutput::Send(NodeId(0), Notice::Grant(_)));
    assert!(!asked.iter().any(grants), "whom it leaves out gets no lease");
    let proposes = |output: &MemberOutput| matches!(output, MemberOutput::Send(_, Notice::Prepare(..)));
    assert!(asked.iter().any(proposes), "so it must be decided");
}

#[test]
fn a_node_with_a_damaged_log_enters_no_view_that_it_may_have_known() {
    let view = |epoch| View { epoch, members: NodeSet(0b01), learners: NodeSet(0b10), recovery: false };
    let mut member = member(7, Durable { view: view(3), ..Durable::default() }, Standing::Damaged);
    let enters = |member: &mut Membership, epoch| {
        member.handle(7, NodeId(0), Notice::Decided(view(epoch)));
        drain(member, 7).contains(&MemberOutput::Install(view(epoch)))
    };
    assert!(!enters(&mut member, 4), "nobody has said what is known");
    member.handle(7, NodeId(4), Notice::Newest(6, 9, Standing::Serving));
    for (node, epoch) in [(0, 4), (2, 5), (3, 5), (4, 9)] {
        member.handle(7, NodeId(node), Notice::Newest(7, epoch, Standing::Serving));
    }
    // Of a majority, whose answers are to questions of this life, the newest is 5: that of 6 it may have known too.
    assert!(!enters(&mut member, 5) && !enters(&mut member, 6) && enters(&mut member, 7));
    // It has no vote before it has a place, and lets nobody serve.
    member.handle(7, NodeId(0), Notice::Beat(7, 7, Standing::Serving, false));
    assert!(drain(&mut member, 7).is_empty());
    let ballot = Ballot { round: 9, node: NodeId(0) };
    member.handle(7, NodeId(0), Notice::Prepare(view(7), ballot, NodeSet::EMPTY));
    assert!(drain(&mut member, 7).is_empty());
    member.set_status(Standing::Learning);
    member.handle(7, NodeId(0), Notice::Prepare(view(7), ballot, NodeSet::EMPTY));
    assert!(drain(&mut member, 7).contains(&MemberOutput::Send(NodeId(0), Notice::Promise(8, ballot, None))));
}

/// Another node's leave is not the only one that a member has: it has its own, too.
#[test]
fn a_node_accepts_no_view_without_itself_while_it_may_serve() {
    let view = View::first(NodeSet::first(5));
    let mut member = member(0, Durable { view, ..Durable::default() }, Standing::Serving);
    let begin = 2 * TIMING.term;
    others().for_each(|node| member.handle(begin, node, Notice::Beat(begin, 1, Standing::Serving, false)));
    member.timeout(begin);
    let sent = drain(&mut member, begin);
    assert!(sent.iter().any(|output| matches!(output, MemberOutput::Send(_, Notice::Beat(..)))));
    // Two others grant what it asks for, and with itself they are a majority.
    let lease = MemberOutput::Lease(begin + TIMING.lease);
    [2, 3].into_iter().for_each(|node| member.handle(begin, NodeId(node), Notice::Grant(begin)));
    assert!(drain(&mut member, begin).contains(&lease));
    let (ballot, proposer) = (Ballot { round: 1, node: NodeId(4) }, NodeId(4));
    let without = View { epoch: 2, members: NodeSet(0b11101), learners: NodeSet::EMPTY, recovery: false };
    let accepted = MemberOutput::Send(proposer, Notice::Accepted(ballot, without));
    member.handle(begin, proposer, Notice::Prepare(view, ballot, NodeSet::one(ME)));
    member.handle(begin, proposer, Notice::Accept(ballot, without));
    assert!(!drain(&mut member, begin).contains(&accepted), "its lease is not over");
    // It takes no new one meanwhile.
    for now in (begin..begin + TIMING.term).step_by(TIMING.beat as usize) {
        others().for_each(|node| member.handle(now, node, Notice::Beat(now, 1, Standing::Serving, false)));
        member.timeout(now);
        [2, 3].into_iter().for_each(|node| member.handle(now, NodeId(node), Notice::Grant(now)));
        let longer =
            |output: &MemberOutput| matches!(output, MemberOutput::Lease(until) if *until > begin + TIMING.lease);
        let asked = drain(&mut member, now);
        assert!(!asked.iter().any(longer), "{} ms: {asked:?}", (now - begin) / MS);
    }
    let end = begin + TIMING.term;
    member.handle(end, proposer, Notice::Accept(ballot, without));
    assert!(drain(&mut member, end).contains(&accepted));
}

/// The others beat all the time, but what they sent lies unread.
#[test]
fn a_node_that_stood_still_listens_before_it_suspects_anybody() {
    let view = View::first(NodeSet::first(5));
    let mut member = member(0, Durable { view, ..Durable::default() }, Standing::Serving);
    let begin = 2 * TIMING.term;
    let hears = |member: &mut Membership, now: u64| {
        others().for_each(|node| member.handle(now, node, Notice::Beat(now, 1, Standing::Serving, false)));
    };
    let proposes = |member: &mut Membership, now: u64| {
        member.timeout(now);
        let asks = |output: &MemberOutput| matches!(output, MemberOutput::Send(_, Notice::Prepare(..)));
        drain(member, now).iter().any(asks)
    };
    hears(&mut member, begin);
    assert!(!proposes(&mut member, begin));
    let two = |member: &mut Membership, now: u64| {
        let beat = Notice::Beat(now, 1, Standing::Serving, false);
        [2, 3].into_iter().for_each(|node| member.handle(now, NodeId(node), beat));
    };
    // With two of them it is a majority. The others are heard a beat later, and never again.
    let back = begin + 3 * TIMING.suspect;
    two(&mut member, back);
    assert!(!proposes(&mut member, back), "nobody was heard, and nobody was listening");
    hears(&mut member, back + TIMING.beat);
    let beats = (back + TIMING.beat..).step_by(TIMING.beat as usize).take(40);
    let mut asked = None;
    for now in beats {
        two(&mut member, now);
        if proposes(&mut member, now) {
            asked.get_or_insert(now);
        }
    }
    assert!(asked.is_some_and(|at| at >= back + TIMING.suspect), "{asked:?}");
}
