//! Comparison and repair of one piece.

use super::super::Mirror;
use super::super::bounded::{FailedMember, JointLimit, MemberFailure};
use super::super::change::Targets;
use super::super::change_queue::{ChangeQueue, ChangeTurn};
use super::super::member::MirrorMember;
use futures_util::future::join_all;
use lunar_block::{BlockRange, Buffer, Error, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Maximum number of attempts for one piece; after each of them a member was left out.
const ATTEMPTS_MAX: u32 = 3;

/// The content of a piece on a member.
struct Content {
    member: Arc<MirrorMember>,
    data: Buffer,
    /// By block; true if it cannot be read.
    unreadable: Vec<bool>,
}

impl Content {
    fn block(&self, at: usize, block_bytes: usize) -> &[u8] {
        &self.data[at * block_bytes..(at + 1) * block_bytes]
    }
}

/// The content that counts, and who was wrong.
#[derive(Debug, Default)]
struct Verdict {
    different_blocks: u64,
    undecided_blocks: u64,
    unreadable_blocks: u64,
    repairs: Vec<Repair>,
}

/// Blocks of one member that are to be written.
#[derive(Debug, Eq, PartialEq)]
struct Repair {
    /// Index of the member.
    at: usize,
    /// First block, from the beginning of the piece.
    first: usize,
    data: Vec<u8>,
    /// True if the member could not read the blocks.
    was_unreadable: bool,
    /// True if most members have another content.
    is_outvoted: bool,
}

/// Reads from a member within the rest of a limit.
async fn read_in_time(
    limit: JointLimit,
    member: &Arc<MirrorMember>,
    range: BlockRange,
    into: Buffer,
) -> Result<Buffer, MemberFailure> {
    match tokio::time::timeout(limit.left(), member.read(range, into)).await {
        Ok(Ok(data)) => Ok(data),
        Ok(Err(error)) => Err(MemberFailure::Device(error)),
        Err(_) => Err(limit.exceeded()),
    }
}

impl Mirror {
    /// Compares a piece, and repairs it if members differ. Returns false if fewer than two members
    /// have it.
    ///
    /// Pieces that are equal need no lock: the members had the same content at some time each.
    pub(super) async fn scrub_piece(self: &Arc<Self>, piece: BlockRange) -> Result<bool, Error> {
        let holders = self.holders(piece);
        if holders.len() < 2 {
            return Ok(false);
        }
        if self.are_equal(&holders, piece).await {
            return Ok(true);
        }
        let turn = ChangeQueue::enter(&self.queue, piece).await;
        for _ in 0..ATTEMPTS_MAX {
            let (contents, failed) = self.contents(piece).await?;
            if failed.iter().any(|failed| failed.failure.is_busy()) {
                return Ok(false);
            }
            if !failed.is_empty() {
                for failed in &failed {
                    failed.member.fail(&failed.failure);
                }
                let failed: Vec<_> = failed.into_iter().map(|failed| failed.member).collect();
                self.leave_out(&failed).await?;
                continue;
            }
            if contents.len() < 2 {
                return Ok(false);
            }
            self.repair_piece(&turn, piece, &contents).await?;
            return Ok(true);
        }
        Ok(false)
    }

    /// True if all holders of a piece can be read and have the same content.
    async fn are_equal(&self, holders: &[Arc<MirrorMember>], piece: BlockRange) -> bool {
        let bytes = piece.count as usize * self.geometry().block_bytes as usize;
        let mut buffers = Vec::new();
        for _ in holders {
            // Only here: others that wait for the turn of a change may hold the memory.
            buffers.push(self.buffers().take_when_free(bytes).await);
        }
        let reads = holders.iter().zip(buffers);
        let limit = JointLimit::begin(self.options.member_wait);
        let reads = reads.map(|(member, into)| read_in_time(limit, member, piece, into));
        let mut reads = join_all(reads).await.into_iter();
        reads.next().and_then(Result::ok).is_some_and(|first| {
            reads.all(|other| other.is_ok_and(|other| other[..bytes] == first[..bytes]))
        })
    }

    /// Returns the current members that have a piece, in the order of their slots.
    fn holders(&self, piece: BlockRange) -> Vec<Arc<MirrorMember>> {
        let (first, last) = self.intents.span(piece);
        self.present().filter(|one| one.is_current() && one.holds(first, last)).collect()
    }

    /// Reads a piece from all members that have it, in the turn of a change. Returns the members
    /// that failed, or have a loss: their content counts for nothing.
    async fn contents(
        &self,
        piece: BlockRange,
    ) -> Result<(Vec<Content>, Vec<FailedMember>), Error> {
        let roster = self.roster.read().await;
        self.refuse_closed(roster.is_closed)?;
        let (mut contents, mut failed) = (Vec::new(), Vec::new());
        let holders = self.holders(piece);
        let reads = holders.iter().map(|member| self.content(member, piece));
        for (member, content) in holders.iter().zip(join_all(reads).await) {
            match content {
                Ok(content) => contents.push(content),
                Err(failure) => failed.push(FailedMember::new(member, failure)),
            }
        }
        Ok((contents, failed))
    }

    /// Reads a piece from a member, block by block where it is unreadable. All reads together have
    /// the time that a member has to answer: changes wait for them.
    async fn content(
        &self,
        member: &Arc<MirrorMember>,
        piece: BlockRange,
    ) -> Result<Content, MemberFailure> {
        let block = self.geometry().block_bytes as usize;
        let mut content = Content {
            member: Arc::clone(member),
            data: self.buffers().take_zeroed(piece.count as usize * block),
            unreadable: vec![false; piece.count as usize],
        };
        let limit = JointLimit::begin(self.options.member_wait);
        let mut rest = vec![piece];
        while let Some(range) = rest.pop() {
            let first = (range.lba - piece.lba) as usize;
            let bytes = range.count as usize * block;
            match read_in_time(limit, member, range, self.buffers().take(bytes)).await {
                Ok(data) => {
                    content.data[first * block..][..bytes].copy_from_slice(&data[..bytes]);
                }
                Err(MemberFailure::Device(error)) if error.kind == ErrorKind::Medium => {
                    if range.count == 1 {
                        content.unreadable[first] = true;
                        member.fail(&error);
                        continue;
                    }
                    let half = range.count / 2;
                    rest.push(BlockRange::new(range.lba + half, range.count - half));
                    rest.push(BlockRange::new(range.lba, half));
                }
                Err(failure) => return Err(failure),
            }
        }
        // Most devices report a loss only by a flush.
        limit.run_one(member, member.check_losses()).await?;
        if member.has_lost() { Err(MemberFailure::Lost) } else { Ok(content) }
    }

    /// Makes the members equal.
    async fn repair_piece(
        self: &Arc<Self>,
        turn: &ChangeTurn,
        piece: BlockRange,
        contents: &[Content],
    ) -> Result<(), Error> {
        let block = self.geometry().block_bytes as usize;
        let verdict = compare_contents(contents, block);
        if verdict.different_blocks > 0 {
            tracing::warn!(
                "{}: members differ in {} of the blocks {}+{}; {} without a majority",
                self.name,
                verdict.different_blocks,
                piece.lba,
                piece.count,
                verdict.undecided_blocks
            );
        }
        self.record_scrub(|report| {
            report.different_blocks += verdict.different_blocks;
            report.undecided_blocks += verdict.undecided_blocks;
            report.unreadable_blocks += verdict.unreadable_blocks;
            for repair in &verdict.repairs {
                let blocks = (repair.data.len() / block) as u64;
                let slot = contents[repair.at].member.slot;
                if repair.was_unreadable {
                    report.of(slot).unreadable_blocks += blocks;
                } else if repair.is_outvoted {
                    report.of(slot).outvoted_blocks += blocks;
                }
            }
        });
        let limit = JointLimit::begin(self.options.member_wait);
        for repair in verdict.repairs {
            let member = &contents[repair.at].member;
            if limit.left().is_zero() {
                member.fail(MemberFailure::Late(self.options.member_wait));
                return self.leave_out(std::slice::from_ref(member)).await.map(drop);
            }
            let range = BlockRange::new(
                piece.lba + repair.first as u64,
                (repair.data.len() / block) as u64,
            );
            self.write_repair(turn, member, range, repair).await?;
        }
        Ok(())
    }

    async fn write_repair(
        self: &Arc<Self>,
        turn: &ChangeTurn,
        member: &Arc<MirrorMember>,
        range: BlockRange,
        repair: Repair,
    ) -> Result<(), Error> {
        let is_read_back = repair.was_unreadable;
        let data = self.buffers().charge_vec(repair.data);
        let targets = Targets::One(Arc::clone(member));
        self.change_in_turn(turn, range, targets, |member| {
            let (cloned, data, buffers) = (Arc::clone(member), data.clone(), self.buffers());
            Box::pin(async move {
                let bytes = data.len();
                cloned.write(range, data, false).await?;
                if is_read_back {
                    cloned.read(range, buffers.take(bytes)).await?;
                }
                Ok(())
            })
        })
        .await?;
        if is_read_back {
            self.repairs.fetch_add(1, SeqCst);
        }
        let (lba, count, name) = (range.lba, range.count, member.device.name());
        tracing::warn!("{}: blocks {lba}+{count} of member {name} were rewritten", self.name);
        Ok(())
    }
}

/// Compares the contents of members, which are in the order of their slots, block by block.
fn compare_contents(contents: &[Content], block: usize) -> Verdict {
    let mut verdict = Verdict::default();
    let blocks = contents.first().map_or(0, |content| content.unreadable.len());
    for at in 0..blocks {
        let readable: Vec<usize> =
            (0..contents.len()).filter(|one| !contents[*one].unreadable[at]).collect();
        let Some(first) = readable.first() else {
            verdict.unreadable_blocks += 1;
            continue;
        };
        let votes = |content: &[u8]| {
            readable.iter().filter(|one| contents[**one].block(at, block) == content).count()
        };
        let mut counts = contents[*first].block(at, block);
        let mut is_decided = true;
        if votes(counts) < readable.len() {
            verdict.different_blocks += 1;
            let majority = readable.iter().map(|one| contents[*one].block(at, block));
            // With two members none has a majority.
            let mut majority = majority.filter(|content| 2 * votes(content) > readable.len());
            match majority.next() {
                Some(content) => counts = content,
                None => is_decided = false,
            }
            verdict.undecided_blocks += u64::from(!is_decided);
        }
        for (one, content) in contents.iter().enumerate() {
            let was_unreadable = content.unreadable[at];
            if was_unreadable || content.block(at, block) != counts {
                let is_outvoted = is_decided && !was_unreadable;
                let data = counts.to_vec();
                let repair = Repair { at: one, first: at, data, was_unreadable, is_outvoted };
                add_repair(&mut verdict.repairs, repair, block);
            }
        }
    }
    verdict
}

/// Adds a repair, joined to the one before it if that is possible.
fn add_repair(repairs: &mut Vec<Repair>, repair: Repair, block: usize) {
    let is_next = |before: &&mut Repair| {
        before.at == repair.at
            && before.first + before.data.len() / block == repair.first
            && before.was_unreadable == repair.was_unreadable
            && before.is_outvoted == repair.is_outvoted
    };
    match repairs.iter_mut().rev().find(is_next) {
        Some(before) => before.data.extend_from_slice(&repair.data),
        None => repairs.push(repair),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member_device::MemberDevice;
    use lunar_block::{BufferPool, MemoryDevice};
    use std::time::Duration;

    /// Members whose blocks have one byte each; a space cannot be read.
    fn contents(of_members: &[&str]) -> Vec<Content> {
        let member = |(slot, text): (u16, &&str)| {
            let disk = Arc::new(MemoryDevice::new(2 << 20, 512, 512).unwrap());
            let wait = Duration::from_secs(2);
            let mut data = BufferPool::default().take(text.len());
            data.copy_from_slice(text.as_bytes());
            Content {
                member: Arc::new(MirrorMember::new(slot, MemberDevice::new(disk), true, 1, wait)),
                data,
                unreadable: text.chars().map(|char| char == ' ').collect(),
            }
        };
        (0..).zip(of_members).map(member).collect()
    }

    fn repair(at: usize, first: usize, data: &str, is_outvoted: bool) -> Repair {
        let data = data.as_bytes().to_vec();
        Repair { at, first, data, was_unreadable: false, is_outvoted }
    }

    /// Goal: of two members the first one counts, of three the majority; nobody is blamed without
    /// one.
    #[test]
    fn majorities() {
        let two = compare_contents(&contents(&["abcd", "axyd"]), 1);
        assert_eq!((two.different_blocks, two.undecided_blocks), (2, 2));
        assert_eq!(two.repairs, [repair(1, 1, "bc", false)]);
        let three = compare_contents(&contents(&["abc", "xbz", "xby"]), 1);
        assert_eq!((three.different_blocks, three.undecided_blocks), (2, 1));
        let [outvoted, second, third] = &three.repairs[..] else { panic!("{three:?}") };
        assert_eq!(*outvoted, repair(0, 0, "x", true));
        assert_eq!((second, third), (&repair(1, 2, "c", false), &repair(2, 2, "c", false)));
        let four = compare_contents(&contents(&["a", "a", "b", "b"]), 1);
        assert_eq!((four.undecided_blocks, four.repairs.len()), (1, 2));
        assert!(compare_contents(&contents(&["same", "same"]), 1).repairs.is_empty());
    }

    /// Goal: a block that cannot be read is wrong, and has no vote.
    #[test]
    fn unreadable_blocks() {
        let verdict = compare_contents(&contents(&[" b ", "ab ", "abc"]), 1);
        assert_eq!((verdict.different_blocks, verdict.unreadable_blocks), (0, 0));
        let unreadable = |at, first, data: &str| Repair {
            was_unreadable: true,
            ..repair(at, first, data, false)
        };
        let want = [unreadable(0, 0, "a"), unreadable(0, 2, "c"), unreadable(1, 2, "c")];
        assert_eq!(verdict.repairs, want);
        let verdict = compare_contents(&contents(&["a ", "b ", "  "]), 1);
        assert_eq!((verdict.undecided_blocks, verdict.unreadable_blocks), (1, 1));
        assert_eq!(verdict.repairs.len(), 2);
    }
}
