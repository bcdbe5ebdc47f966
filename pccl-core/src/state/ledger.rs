//! Which chunk of the shared state comes from whom. Pure: whoever fetches asks what to fetch next,
//! and says what came of it.
//!
//! Chunks that are right already are not fetched: a fetch that broke off goes on where it was. A
//! tensor whose content may differ among members comes from one of them as a whole.

use std::collections::{BTreeMap, VecDeque};

use super::digest::{chunk_count, root};
use crate::ids::{ContentDigest, MemberId};
use crate::types::{DataType, DigestKind};
use crate::wire::state::{CHUNKS_PER_REQUEST, DIGESTS_PER_REQUEST};

/// A tensor to fetch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Digests of the run.
    pub kind: DigestKind,
    /// Element type.
    pub data_type: DataType,
    /// Number of elements.
    pub count: u64,
    /// ContentDigest that it must have; none where members may differ.
    pub expected: Option<ContentDigest>,
    /// Digests of its chunks as they are.
    pub own: Vec<ContentDigest>,
}

/// What to do next with a seeder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Ask for digests of chunks; answered by [`Ledger::listed`].
    List {
        /// Which tensor, in the order given to [`Ledger::new`].
        tensor: usize,
        /// First chunk.
        first: u64,
        /// How many.
        count: u32,
    },
    /// Ask for chunks; each answered by [`Ledger::check`] and [`Ledger::stored`].
    Chunks {
        /// Which tensor.
        tensor: usize,
        /// First chunk.
        first: u64,
        /// How many.
        count: u32,
    },
    /// Others have what is left; ask again when something has changed.
    Wait,
    /// All is there.
    Finished,
}

/// What a chunk is that came from a seeder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Came {
    /// What it has to be, and still missing: it may go to its place.
    Right,
    /// Not wanted any more: another seeder was faster, or its tensor comes from another one now.
    Late,
    /// Not what it has to be: the seeder is to be given up.
    Wrong,
}

/// State of a fetch.
#[derive(Debug)]
pub struct Ledger {
    tensors: Vec<Tensor>,
    /// Tensors from the first one on that are complete, and stay so.
    finished: usize,
    /// Seeders that chunks are shared out to; zero if that does not matter.
    seeders: u64,
}

#[derive(Debug)]
struct Tensor {
    wanted: Wanted,
    chunks: u64,
    list: List,
    /// Runs of chunks that nobody has been asked for: first and end.
    open: VecDeque<(u64, u64)>,
    /// Chunks that somebody has been asked for.
    asked: BTreeMap<u64, MemberId>,
    /// Who gives all of it, where members may differ.
    source: Option<MemberId>,
}

#[derive(Debug)]
enum List {
    /// Nobody has been asked.
    Open,
    /// A seeder gives it, and has given this much; whether the next page is under way.
    Coming(MemberId, Vec<ContentDigest>, bool),
    /// It is here, and fits what is expected.
    Known(Vec<ContentDigest>),
    /// None is needed: the tensor's own digest says what its only chunk must be. States of
    /// thousands of small tensors are fetched without a list each.
    OneChunk,
}

impl Ledger {
    /// Nothing has been fetched yet.
    pub fn new(wanted: Vec<Wanted>) -> Self {
        let tensors = wanted.into_iter().map(Tensor::new).collect();
        Self {
            tensors,
            finished: 0,
            seeders: 0,
        }
    }

    /// Shares chunks out to so many seeders: the fewer are left of all tensors, the fewer are asked
    /// of one, so that all end at the same time.
    pub fn shared_by(mut self, seeders: usize) -> Self {
        self.seeders = if seeders > 1 { seeders as u64 } else { 0 };
        self
    }

    /// What to ask a seeder for next. What is given out is not given to another one before
    /// [`Ledger::lost`] or [`Ledger::stalled`].
    pub fn next(&mut self, seeder: MemberId) -> Step {
        let complete = |t: &&Tensor| t.is_complete();
        let rest = self.tensors.iter().skip(self.finished);
        self.finished += rest.take_while(complete).count();
        let share = self.share();
        let mut finished = true;
        for (index, tensor) in self.tensors.iter_mut().enumerate().skip(self.finished) {
            if tensor.is_complete() {
                continue;
            }
            finished = false;
            if let Some(step) = tensor.next(index, seeder, share) {
                return step;
            }
        }
        if finished { Step::Finished } else { Step::Wait }
    }

    /// Chunks to ask one seeder for at a time, in one request or in several: what is left in all,
    /// not of one tensor, so that many small tensors are fetched like a large one.
    pub fn share(&self) -> u64 {
        let most = u64::from(CHUNKS_PER_REQUEST);
        if self.seeders == 0 {
            return most;
        }
        let enough = most * 4 * self.seeders;
        let mut left = 0;
        for tensor in self.tensors.iter().skip(self.finished) {
            left += tensor.left();
            if left >= enough {
                return most;
            }
        }
        (left / (4 * self.seeders)).max(1)
    }

    /// A page of digests came from a seeder. Returns how many of the tensor's chunks turn out to be
    /// right already, once the list is whole. An error says why it is of no use; the seeder is to
    /// be given up.
    pub fn listed(
        &mut self,
        seeder: MemberId,
        tensor: usize,
        page: &[ContentDigest],
    ) -> Result<u64, String> {
        match self.tensors.get_mut(tensor) {
            Some(tensor) => tensor.listed(seeder, page),
            None => Err("digests of a tensor that nobody asked for".into()),
        }
    }

    /// What a chunk is, by its digest, that came from a seeder.
    pub fn check(
        &self,
        seeder: MemberId,
        tensor: usize,
        chunk: u64,
        digest: ContentDigest,
    ) -> Came {
        let tensor = self.tensors.get(tensor);
        tensor.map_or(Came::Late, |t| t.check(seeder, chunk, digest))
    }

    /// A chunk is in its place that was [`Came::Right`]. Returns whether it was missing until now:
    /// two seeders may have given it.
    pub fn stored(&mut self, tensor: usize, chunk: u64) -> bool {
        let tensor = self.tensors.get_mut(tensor);
        tensor.is_some_and(|t| t.stored(chunk))
    }

    /// Whether a tensor may differ among members, so that what is in its place must not change
    /// once it comes from another one.
    pub fn has_one_source(&self, tensor: usize) -> bool {
        let tensor = self.tensors.get(tensor);
        tensor.is_some_and(|t| t.wanted.expected.is_none())
    }

    /// A seeder is given up: what it was asked for is to be had from others.
    pub fn lost(&mut self, seeder: MemberId) {
        for tensor in &mut self.tensors {
            tensor.lost(seeder);
        }
    }

    /// A seeder gives nothing while others have nothing else to do: what it was asked for is to be
    /// had from them too. What it gives after all is taken, if it is the first. Returns whether it was
    /// asked for anything. A tensor that may differ stays with it: all of it would have to come
    /// again from another one, and two slow seeders would take turns for ever.
    pub fn stalled(&mut self, seeder: MemberId) -> bool {
        let mut any = false;
        for tensor in self.tensors.iter_mut().skip(self.finished) {
            if tensor.wanted.expected.is_some() && tensor.waits_for(seeder) {
                any = true;
                tensor.lost(seeder);
            }
        }
        any
    }

    /// Whether all is there.
    pub fn is_complete(&self) -> bool {
        let mut rest = self.tensors.iter().skip(self.finished);
        rest.all(Tensor::is_complete)
    }
}

impl Tensor {
    fn new(wanted: Wanted) -> Self {
        let bytes = wanted.count.saturating_mul(wanted.data_type.size() as u64);
        let chunks = chunk_count(bytes);
        let mut open = VecDeque::new();
        let expected = wanted.expected;
        let list = if chunks == 0 {
            List::Known(Vec::new())
        } else if expected
            == Some(root(
                wanted.kind,
                wanted.data_type,
                wanted.count,
                &wanted.own,
            ))
        {
            List::Known(wanted.own.clone())
        } else if chunks == 1 && expected.is_some() {
            add(&mut open, 0);
            List::OneChunk
        } else {
            List::Open
        };
        Self {
            wanted,
            chunks,
            list,
            open,
            asked: BTreeMap::new(),
            source: None,
        }
    }

    fn is_complete(&self) -> bool {
        let known = matches!(self.list, List::Known(_) | List::OneChunk);
        known && self.open.is_empty() && self.asked.is_empty()
    }

    /// Chunks that nobody has been asked for, or more while that is not known.
    fn left(&self) -> u64 {
        match self.list {
            List::Open | List::Coming(..) => self.chunks,
            List::Known(_) | List::OneChunk => self.open.iter().map(|(f, end)| end - f).sum(),
        }
    }

    fn next(&mut self, index: usize, seeder: MemberId, share: u64) -> Option<Step> {
        if self.wanted.expected.is_none() && self.source.is_some_and(|s| s != seeder) {
            return None;
        }
        match &mut self.list {
            List::Open => {
                self.list = List::Coming(seeder, Vec::new(), true);
                self.source = Some(seeder);
                Some(self.page(index, 0))
            }
            List::Coming(from, digests, under_way) => {
                if *from != seeder || *under_way {
                    return None;
                }
                *under_way = true;
                let first = digests.len() as u64;
                Some(self.page(index, first))
            }
            List::Known(_) | List::OneChunk => {
                let (first, end) = self.open.front_mut()?;
                let (start, count) = (*first, (*end - *first).min(share));
                *first += count;
                if first == end {
                    self.open.pop_front();
                }
                let asked = (start..start + count).map(|chunk| (chunk, seeder));
                self.asked.extend(asked);
                Some(Step::Chunks {
                    tensor: index,
                    first: start,
                    count: count as u32,
                })
            }
        }
    }

    fn page(&self, tensor: usize, first: u64) -> Step {
        let count = (self.chunks - first).min(DIGESTS_PER_REQUEST.into()) as u32;
        Step::List {
            tensor,
            first,
            count,
        }
    }

    fn listed(&mut self, seeder: MemberId, page: &[ContentDigest]) -> Result<u64, String> {
        let mut late = Vec::new();
        let (digests, under_way) = match &mut self.list {
            List::Coming(from, digests, under_way) if *from == seeder => (digests, under_way),
            _ if self.wanted.expected.is_none() => {
                return Err("digests that nobody asked for".into());
            }
            // Another one gives them now. A whole list that is right is welcome all the same.
            List::Open | List::Coming(..) if page.len() as u64 == self.chunks => {
                (&mut late, &mut false)
            }
            _ => return Ok(0),
        };
        let left = self.chunks - digests.len() as u64;
        if page.len() as u64 != left.min(DIGESTS_PER_REQUEST.into()) {
            return Err(format!(
                "{} digests of chunks where {left} are left",
                page.len()
            ));
        }
        *under_way = false;
        digests.extend_from_slice(page);
        if (digests.len() as u64) < self.chunks {
            return Ok(0);
        }
        let Wanted {
            kind,
            data_type,
            count,
            expected,
            ..
        } = self.wanted;
        if expected.is_some_and(|e| e != root(kind, data_type, count, digests)) {
            return Err("its digests of chunks are not those of the elected content".into());
        }
        let digests = std::mem::take(digests);
        let mut right = 0;
        for (chunk, digest) in digests.iter().enumerate() {
            if self.wanted.own.get(chunk) == Some(digest) {
                right += 1;
            } else {
                add(&mut self.open, chunk as u64);
            }
        }
        self.list = List::Known(digests);
        Ok(right)
    }

    fn check(&self, seeder: MemberId, chunk: u64, digest: ContentDigest) -> Came {
        let Wanted {
            kind,
            data_type,
            count,
            expected,
            ..
        } = self.wanted;
        if expected.is_none() && self.source != Some(seeder) || !self.misses(chunk) {
            return Came::Late;
        }
        let right = match &self.list {
            List::OneChunk => {
                chunk == 0 && expected == Some(root(kind, data_type, count, &[digest]))
            }
            _ => self.known(chunk) == Some(digest),
        };
        if right { Came::Right } else { Came::Wrong }
    }

    fn misses(&self, chunk: u64) -> bool {
        let within = |(first, end): &(u64, u64)| (*first..*end).contains(&chunk);
        self.asked.contains_key(&chunk) || self.open.iter().any(within)
    }

    fn stored(&mut self, chunk: u64) -> bool {
        let missed = self.misses(chunk);
        if self.asked.remove(&chunk).is_none() {
            remove(&mut self.open, chunk);
        }
        if missed {
            self.note(chunk);
        }
        missed
    }

    fn waits_for(&self, seeder: MemberId) -> bool {
        matches!(self.list, List::Coming(from, ..) if from == seeder)
            || self.asked.values().any(|from| *from == seeder)
    }

    fn known(&self, chunk: u64) -> Option<ContentDigest> {
        match &self.list {
            List::Known(digests) => digests.get(usize::try_from(chunk).ok()?).copied(),
            _ => None,
        }
    }

    /// The content of a chunk is now what the list says.
    fn note(&mut self, chunk: u64) {
        let known = self.known(chunk);
        let own = usize::try_from(chunk).ok();
        let own = own.and_then(|chunk| self.wanted.own.get_mut(chunk));
        if let (Some(own), Some(known)) = (own, known) {
            *own = known;
        }
    }

    fn lost(&mut self, seeder: MemberId) {
        if matches!(self.list, List::Coming(from, ..) if from == seeder) {
            self.list = List::Open;
        }
        let mut back = Vec::new();
        self.asked.retain(|chunk, from| {
            let stays = *from != seeder;
            if !stays {
                back.push(*chunk);
            }
            stays
        });
        for chunk in back {
            add(&mut self.open, chunk);
        }
        if self.source == Some(seeder) && !self.is_complete() {
            self.source = None;
            if self.wanted.expected.is_none() {
                // The next one's content may be another: its list says what of this one's is right.
                self.list = List::Open;
                self.open.clear();
            }
        }
    }
}

/// Adds a chunk to the last run that it continues, or as a run of its own.
fn add(open: &mut VecDeque<(u64, u64)>, chunk: u64) {
    match open.back_mut() {
        Some((_, end)) if *end == chunk => *end += 1,
        _ => open.push_back((chunk, chunk + 1)),
    }
}

/// Takes a chunk out of the run that it is in.
fn remove(open: &mut VecDeque<(u64, u64)>, chunk: u64) {
    let within = |(first, end): &(u64, u64)| (*first..*end).contains(&chunk);
    let Some(place) = open.iter().position(within) else {
        return;
    };
    let Some((first, end)) = open.remove(place) else {
        return;
    };
    for part in [(chunk + 1, end), (first, chunk)] {
        if part.0 < part.1 {
            open.insert(place, part);
        }
    }
}

#[cfg(test)]
mod tests;
