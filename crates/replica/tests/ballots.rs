//! A ballot is used for one view, whatever is lost, and whenever its node crashes.

use remora_replica::ddp::View;
use remora_replica::member::{Durable, MemberOutput, Membership, Notice, Standing, Timing};
use remora_replica::types::{NodeId, NodeSet};

const MS: u64 = 1_000_000;
const TIMING: Timing =
    Timing { beat: 20 * MS, lease: 100 * MS, term: 101 * MS, suspect: 200 * MS, recover: Some(4000 * MS) };

/// Three nodes of a view of them all. They come from a crash, one that all had at once.
struct Nodes {
    nodes: [Membership; 3],
    now: u64,
}

fn start(now: u64, node: u8, durable: Durable) -> Membership {
    Membership::new(now, NodeId(node), NodeSet::first(3), TIMING, durable, Standing::Joining)
}

impl Nodes {
    fn new() -> Self {
        let durable = Durable { view: View::first(NodeSet::first(3)), ..Durable::default() };
        Self { nodes: [0, 1, 2].map(|node| start(0, node, durable)), now: 0 }
    }

    /// What a node asks for, with all that it wants durable so at once if its disk is `quick`, and never otherwise.
    fn drain(&mut self, node: usize, quick: bool) -> Vec<MemberOutput> {
        let mut all = Vec::new();
        while let Some(output) = self.nodes[node].poll() {
            if let (MemberOutput::Persist(number, _), true) = (output, quick) {
                self.nodes[node].persisted(self.now, number);
            }
            all.push(output);
        }
        all
    }

    /// At `now` a node has heard of `alive` alone for a second and looks what should follow. What it sends reaches `hears`, who answer; so it goes
    /// on until nothing comes any more, but that no view is told to anybody when it is decided, nor accepted by others than
    /// `accept`. Gives the view that the node enters.
    fn proposes(&mut self, now: u64, node: usize, alive: &[usize], accept: &[usize], quick: bool) -> Option<View> {
        self.now = now;
        for at in (now.saturating_sub(1000 * MS)..=now).step_by(20 * MS as usize) {
            for &other in alive {
                self.nodes[node].handle(at, NodeId(other as u8), Notice::Beat(at, 1, Standing::Joining, false));
            }
        }
        self.nodes[node].timeout(now);
        let mut entered = None;
        loop {
            let asked = self.drain(node, quick);
            entered = entered.or(asked.iter().find_map(|output| match output {
                MemberOutput::Install(view) => Some(*view),
                _ => None,
            }));
            let wanted = |notice: &Notice, to: usize| match notice {
                Notice::Prepare(..) => alive.contains(&to),
                Notice::Accept(..) => accept.contains(&to),
                _ => false,
            };
            let asks: Vec<(usize, Notice)> = asked
                .iter()
                .filter_map(|output| match *output {
                    MemberOutput::Send(NodeId(to), notice) => Some((usize::from(to), notice)),
                    _ => None,
                })
                .filter(|(to, notice)| wanted(notice, *to))
                .collect();
            if asks.is_empty() {
                return entered;
            }
            for (to, notice) in asks {
                self.nodes[to].handle(now, NodeId(node as u8), notice);
                for output in self.drain(to, true) {
                    if let MemberOutput::Send(NodeId(back), notice) = output
                        && usize::from(back) == node
                        && matches!(notice, Notice::Promise(..) | Notice::Accepted(..))
                    {
                        self.nodes[node].handle(now, NodeId(to as u8), notice);
                    }
                }
            }
        }
    }
}

#[test]
fn one_view_is_decided_though_its_proposer_crashed_before_its_ballot_was_durable() {
    let mut nodes = Nodes::new();
    // Node 0, whose disk takes for ever, would have a view of all three; only node 1 hears of it in phase 2.
    assert_eq!(nodes.proposes(300 * MS, 0, &[1, 2], &[1], false), None);
    // It crashes. In its next life it does not hear of node 1, and would go on with node 2 alone.
    let durable = Durable { view: View::first(NodeSet::first(3)), ..Durable::default() };
    nodes.nodes[0] = start(1000 * MS, 0, durable);
    let first = nodes.proposes(5100 * MS, 0, &[2], &[2], true).expect("a majority decides");
    // Nobody hears of that, and node 0 is gone again: the others go on, with what they have accepted.
    let second = nodes.proposes(10_000 * MS, 1, &[2], &[2], true).expect("a majority decides");
    assert_eq!(first, second, "two views of one epoch");
}

#[test]
fn nobody_hears_of_a_ballot_before_it_is_durable_where_it_was_made() {
    let mut nodes = Nodes::new();
    for now in (300..1000).step_by(20).map(|ms| ms * MS) {
        nodes.now = now;
        for other in [1, 2] {
            nodes.nodes[0].handle(now, NodeId(other), Notice::Beat(now, 1, Standing::Joining, false));
        }
        nodes.nodes[0].timeout(now);
        let asked = nodes.drain(0, false);
        let told = |output: &MemberOutput| matches!(output, MemberOutput::Send(_, Notice::Prepare(..)));
        assert!(!asked.iter().any(told), "{asked:?}");
    }
}
