//! Disks that become longer and shorter.

use super::{Subject, are_zeroes, expect};
use crate::{BlockRange, ErrorKind};
use bytes::Bytes;

impl Subject {
    /// Checks changes of size. When the disk grows, old data stays, and new blocks read as zeroes
    /// and can be written, up to the end. When it shrinks, if it can, blocks beyond the end are
    /// refused, and read as zeroes after the disk grows again.
    pub(super) async fn size_changes(&self) {
        let Some(resize) = self.device.resize() else { return };
        let before = self.read_all().await;
        let (blocks, block) = (self.blocks(), self.block_bytes() as u64);
        resize.resize(blocks * block).await.unwrap();
        assert_eq!(self.blocks(), blocks, "its own size changes nothing");
        expect(resize.resize(0).await, ErrorKind::Open, BlockRange::new(0, 0));
        expect(resize.resize(block + 1).await, ErrorKind::Open, BlockRange::new(0, 0));
        match resize.resize(2 * blocks * block).await {
            // The size of a block device cannot be changed here.
            Err(error) if error.kind == ErrorKind::Open => return,
            resized => resized.unwrap(),
        }
        assert_eq!(self.blocks(), 2 * blocks);
        let added = BlockRange::new(blocks, blocks);
        assert!(are_zeroes(&self.read(added).await), "new blocks are zeroes");
        assert_eq!(self.read(BlockRange::new(0, blocks)).await, before);
        let data = self.random_data((blocks * block) as usize, self.seed);
        self.device.write(added, data.clone(), true).await.unwrap();
        assert_eq!(self.read(added).await, data);

        match resize.resize(blocks * block).await {
            // A pool does not become smaller.
            Err(error) if error.kind == ErrorKind::Open => {
                assert_eq!(self.blocks(), 2 * blocks, "a refused size changes nothing");
                assert_eq!(self.read(added).await, data);
                return;
            }
            resized => resized.unwrap(),
        }
        self.refuses(BlockRange::new(blocks, 1)).await;
        self.refuses(BlockRange::new(2 * blocks - 1, 1)).await;
        assert_eq!(self.read_all().await, before);
        resize.resize(2 * blocks * block).await.unwrap();
        assert!(are_zeroes(&self.read(added).await), "removed data does not reappear");
        resize.resize(blocks * block).await.unwrap();
    }

    async fn refuses(&self, range: BlockRange) {
        let len = range.count as usize * self.block_bytes();
        let read = self.device.read(range, self.pool.take(len)).await.map(drop);
        expect(read, ErrorKind::OutOfRange, range);
        let written = self.device.write(range, Bytes::from(vec![7; len]), true).await;
        expect(written, ErrorKind::OutOfRange, range);
    }
}
