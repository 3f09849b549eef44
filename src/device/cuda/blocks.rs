//! Which freed blocks of memory are kept, for slabs and pinned memory alike; no driver calls here.

use std::collections::HashMap;

/// One block of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    /// Where its user sees it, aligned.
    pub address: u64,
    /// What the driver gave and wants back.
    pub base: u64,
    /// Bytes from `address`.
    pub bytes: u64,
}

/// Blocks in use and freed blocks kept for reuse, each with a `T` that says when it may be reused.
///
/// Together they never hold more than was in use at one time: what is kept was needed, and a budget that the user of
/// the memory keeps is kept here too.
#[derive(Debug)]
pub(super) struct Blocks<T> {
    used: HashMap<u64, Block>,
    kept: Vec<(Block, T)>, // oldest first
    used_bytes: u64,
    kept_bytes: u64,
    peak_bytes: u64,
}

impl<T> Default for Blocks<T> {
    fn default() -> Self {
        Self { used: HashMap::new(), kept: Vec::new(), used_bytes: 0, kept_bytes: 0, peak_bytes: 0 }
    }
}

impl<T> Blocks<T> {
    /// Reuses the smallest kept block of at least `bytes`, if it wastes no more than a quarter.
    pub fn reuse(&mut self, bytes: u64) -> Option<(Block, T)> {
        let most = bytes.saturating_add(bytes / 4);
        let fits = |block: &Block| (bytes..=most).contains(&block.bytes);
        let best = (0..self.kept.len()).filter(|it| fits(&self.kept[*it].0)).min_by_key(|it| self.kept[*it].0.bytes)?;
        let (block, fence) = self.kept.remove(best);
        self.kept_bytes -= block.bytes;
        self.use_block(block);
        Some((block, fence))
    }

    /// Takes out the oldest kept blocks that a new one of `bytes` would push over the most that was ever in use. To be
    /// given back before the new one is made.
    pub fn make_room(&mut self, bytes: u64) -> Vec<(Block, T)> {
        let limit = self.peak_bytes.max(self.used_bytes.saturating_add(bytes));
        let mut gone = 0;
        while gone < self.kept.len() && self.used_bytes.saturating_add(bytes).saturating_add(self.kept_bytes) > limit {
            self.kept_bytes -= self.kept[gone].0.bytes;
            gone += 1;
        }
        self.kept.drain(..gone).collect()
    }

    /// Enters a new block.
    pub fn use_block(&mut self, block: Block) {
        self.used_bytes += block.bytes;
        self.peak_bytes = self.peak_bytes.max(self.used_bytes);
        self.used.insert(block.address, block);
    }

    /// Takes a block out of use. `None` for an address that is not in use.
    pub fn release(&mut self, address: u64) -> Option<Block> {
        let block = self.used.remove(&address)?;
        self.used_bytes -= block.bytes;
        Some(block)
    }

    /// Keeps a released block.
    pub fn keep(&mut self, block: Block, fence: T) {
        self.kept_bytes += block.bytes;
        self.kept.push((block, fence));
    }

    /// Takes out every kept block.
    pub fn drain(&mut self) -> Vec<(Block, T)> {
        self.kept_bytes = 0;
        std::mem::take(&mut self.kept)
    }

    /// Bytes kept for reuse.
    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn block(address: u64, bytes: u64) -> Block {
        Block { address, base: address, bytes }
    }

    fn used(blocks: &mut Blocks<()>, address: u64, bytes: u64) {
        assert_eq!(blocks.reuse(bytes), None);
        blocks.use_block(block(address, bytes));
    }

    fn free(blocks: &mut Blocks<()>, address: u64) {
        let block = blocks.release(address).unwrap();
        blocks.keep(block, ());
    }

    #[test]
    fn a_freed_block_is_reused_when_it_fits_well() {
        let mut blocks = Blocks::default();
        used(&mut blocks, 1, 100);
        used(&mut blocks, 2, 120);
        free(&mut blocks, 2);
        free(&mut blocks, 1);
        assert_eq!(blocks.kept_bytes(), 220);
        assert_eq!(blocks.reuse(121), None, "too small");
        assert_eq!(blocks.reuse(79), None, "wastes more than a quarter");
        assert_eq!(blocks.reuse(97).unwrap().0.address, 1, "the smallest that fits");
        assert_eq!(blocks.reuse(97).unwrap().0.address, 2);
        assert_eq!(blocks.reuse(97), None);
        assert_eq!(blocks.kept_bytes(), 0);
    }

    #[test]
    fn kept_and_used_never_exceed_the_most_that_was_used() {
        let mut blocks = Blocks::default();
        used(&mut blocks, 1, 100);
        used(&mut blocks, 2, 100);
        free(&mut blocks, 1);
        free(&mut blocks, 2);
        // 200 were in use once; 150 more leave room for none of both 100s but the newer one goes last.
        let gone: Vec<u64> = blocks.make_room(150).iter().map(|it| it.0.address).collect();
        assert_eq!(gone, [1, 2]);
        used(&mut blocks, 3, 50);
        free(&mut blocks, 3);
        assert_eq!(blocks.make_room(150), [], "50 kept and 150 new are no more than 200");
        used(&mut blocks, 4, 150);
        assert_eq!(blocks.make_room(1).len(), 1);
    }

    #[test]
    fn an_unknown_address_is_refused_and_draining_empties() {
        let mut blocks = Blocks::<()>::default();
        assert_eq!(blocks.release(7), None);
        used(&mut blocks, 1, 100);
        free(&mut blocks, 1);
        assert_eq!(blocks.release(1), None, "freed twice");
        assert_eq!(blocks.drain(), [(block(1, 100), ())]);
        assert_eq!(blocks.kept_bytes(), 0);
        assert_eq!(blocks.drain(), []);
    }
}
