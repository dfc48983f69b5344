//! Scans where the nodes are: keys and values go from the leaf into the reply, and the leaf's version is looked at once more
//! afterwards.

use super::TreeRef;
use super::place::{Ground, InPlace, Leaf, More, Next, Nodes, Visit, Way};
use crate::call::{Call, Status};

/// A scan.
pub(crate) struct Range<K: InPlace + ?Sized> {
    at: TreeRef,
    /// The least key that is still to come.
    pub(super) from: K::Kept,
    /// How many pairs are.
    pub(super) left: usize,
    /// Room for the key that a leaf ends in front of.
    next: K::Owned,
    way: Way,
}

/// What became of a look at a leaf.
enum Taken {
    /// Its pairs are in the reply, and what comes next begins in this node.
    Pairs(u32),
    /// The reply has all.
    All,
    /// Somebody changes it.
    Busy,
}

impl<K: InPlace + ?Sized> Visit for Range<K> {
    #[inline(always)]
    fn begin(params: &[u8]) -> Result<Self, Status> {
        let (at, from, value, _) = K::asked(params)?;
        let left = u32::try_from(value).unwrap_or(u32::MAX) as usize;
        Ok(Range { at, from, left, next: K::least(), way: Way::BEGIN })
    }

    fn tree(&self) -> &TreeRef {
        &self.at
    }

    #[inline(always)]
    fn go_on<'m>(&mut self, ground: &mut impl Ground<'m>, call: &mut Call) -> Result<Option<More<'m>>, Status> {
        let Some(nodes) = Nodes::of(&self.at, ground) else { return Ok(None) };
        let words = match nodes.follow(K::sought(&self.from, &call.params), &mut self.way)? {
            Next::Near => return Ok(Some(More::Step)),
            Next::Bring(words) => words,
            Next::Leaf(leaf) => match self.take(&leaf, call)? {
                Taken::All => return Ok(Some(More::Done)),
                Taken::Busy => {
                    self.way.try_again()?;
                    leaf.words.part(0, 1)
                }
                Taken::Pairs(right) => {
                    self.way.turn_right(right);
                    nodes.node(right)?
                }
            },
        };
        Ok(Some(More::Bring(self.way.slot, words)))
    }
}

impl<K: InPlace + ?Sized> Range<K> {
    #[inline(always)]
    fn take(&mut self, leaf: &Leaf<'_>, call: &mut Call) -> Result<Taken, Status> {
        if leaf.is_away() {
            // From there on the keys are in the other part.
            K::away(&self.from, call)?;
            return Ok(Taken::All);
        }
        let before = call.reply.len();
        let count = K::pairs(leaf, self.left, call)?;
        let goes_on = count < self.left && leaf.right() != 0 && K::fence(leaf, &mut self.next);
        if !leaf.is_as_it_was() {
            call.reply.truncate(before);
            return Ok(Taken::Busy);
        }
        self.left -= count;
        if !goes_on {
            return Ok(Taken::All);
        }
        K::turn(&mut self.from, &mut self.next);
        Ok(Taken::Pairs(leaf.right()))
    }
}
