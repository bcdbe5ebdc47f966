//! Fetching the shared state in a world: the ledger of production asks, and seeders answer, lie,
//! stall, die, or go out of reach, between any two chunks.

use std::collections::{BTreeMap, BTreeSet};

use super::rng::Rng;
use crate::ids::{ContentDigest, MemberId};
use crate::state::digest::{CHUNK_BYTES, chunk_digest, root};
use crate::state::ledger::{Came, Ledger, Step, Wanted};
use crate::types::{DataType, DigestKind, StateEntry};
use crate::wire::control::SyncPlan;

/// Two numbers that a tensor of many chunks stands for: the first one of those with an even number,
/// the second one of the others. So contents may have half of their chunks in common.
pub(super) type Content = (u64, u64);

/// Tensors of a member, in the order of their keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tensors {
    /// May differ among members.
    pub(super) optimizer: Content,
    /// Must be the same.
    pub(super) weights: Content,
}

/// What there is to say after a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Said {
    /// It goes on.
    More,
    /// Nobody can be asked.
    Nobody,
    /// All is there: the weights now, and from how many members.
    Done(Content, usize),
    /// What may never be.
    Wrong(String),
}

/// One member's fetch.
#[derive(Debug)]
pub(super) struct Fetch {
    ledger: Ledger,
    /// By tensor of the ledger: whether it is the weights; what its chunks are of; what it has to
    /// be.
    tensors: Vec<(bool, Vec<u64>, Option<ContentDigest>)>,
    /// Seeders with a connection: they have been asked for something, and answered it or not.
    connected: BTreeSet<MemberId>,
    /// What seeders have been asked for and have not answered.
    owed: BTreeMap<MemberId, Step>,
    /// Seeders that will lie once, and such that will be silent for so many steps.
    liars: BTreeSet<MemberId>,
    silent: BTreeMap<MemberId, u32>,
    sources: BTreeSet<MemberId>,
    pub(super) lies: u32,
    pub(super) stalls: u32,
    /// Whether a newcomer registered, or another member fetched, meanwhile.
    pub(super) met_newcomer: bool,
    pub(super) met_reader: bool,
}

impl Fetch {
    /// What a plan asks of a member that has these tensors.
    pub(super) fn new(plan: &SyncPlan, own: Tensors, rng: &mut Rng) -> Self {
        let mut wanted = Vec::new();
        let mut tensors = Vec::new();
        for entry in plan.fetch.iter() {
            let weights = entry.key == WEIGHTS;
            let content = own.of(weights);
            wanted.push(Wanted {
                kind: DigestKind::Fast,
                data_type: DataType::U64,
                count: COUNT,
                expected: entry.digest,
                own: chunks(content),
            });
            tensors.push((weights, words(content), entry.digest));
        }
        let seeders = || plan.seeders.iter().map(|s| s.id);
        Self {
            ledger: Ledger::new(wanted),
            tensors,
            connected: BTreeSet::new(),
            owed: BTreeMap::new(),
            liars: seeders().filter(|_| rng.chance(100)).collect(),
            silent: seeders()
                .filter(|_| rng.chance(150))
                .map(|s| (s, SILENT_STEPS))
                .collect(),
            sources: BTreeSet::new(),
            lies: 0,
            stalls: 0,
            met_newcomer: false,
            met_reader: false,
        }
    }

    /// One step with one of the seeders that can be reached.
    pub(super) fn step(&mut self, seeders: &[(MemberId, Tensors)], rng: &mut Rng) -> Said {
        let gone = |id: &MemberId| !seeders.iter().any(|(seeder, _)| seeder == id);
        let lost: Vec<MemberId> = self.connected.iter().copied().filter(gone).collect();
        for id in lost {
            self.given_up(id);
        }
        if self.ledger.is_complete() {
            return self.done();
        }
        let Some((seeder, has)) = seeders.get(rng.index(seeders.len())).copied() else {
            return Said::Nobody;
        };
        if let Some(left) = self.silent.get_mut(&seeder)
            && self.owed.contains_key(&seeder)
            && *left > 0
        {
            *left -= 1;
            return Said::More;
        }
        match self.owed.remove(&seeder) {
            Some(step) => self.answer(seeder, step, has),
            None => match self.ledger.next(seeder) {
                Step::Finished => self.done(),
                Step::Wait => {
                    let owing: Vec<MemberId> = self.owed.keys().copied().collect();
                    for id in owing {
                        self.stalls += u32::from(self.ledger.stalled(id));
                    }
                    Said::More
                }
                step => {
                    self.connected.insert(seeder);
                    self.owed.insert(seeder, step);
                    Said::More
                }
            },
        }
    }

    fn answer(&mut self, seeder: MemberId, step: Step, has: Tensors) -> Said {
        let lie = self.liars.remove(&seeder);
        let (tensor, first, count) = match step {
            Step::List {
                tensor,
                first,
                count,
            }
            | Step::Chunks {
                tensor,
                first,
                count,
            } => (tensor, first as usize, count as usize),
            Step::Wait | Step::Finished => return Said::More,
        };
        let Some((weights, place, _)) = self.tensors.get_mut(tensor) else {
            return Said::Wrong("a tensor that nobody asked for".into());
        };
        let words = words(has.of(*weights));
        let mut digests = chunks(has.of(*weights));
        if lie {
            self.lies += 1;
            if let Some(digest) = digests.get_mut(first + count / 2) {
                digest.0[3] ^= 1;
            }
        }
        if let Step::List { .. } = step {
            let page = digests.get(first..first + count).unwrap_or_default();
            if self.ledger.listed(seeder, tensor, page).is_err() {
                self.given_up(seeder);
            }
            return Said::More;
        }
        for chunk in first..first + count {
            let (Some(digest), Some(word)) = (digests.get(chunk), words.get(chunk)) else {
                return Said::Wrong(format!("there is no chunk {chunk}"));
            };
            match self.ledger.check(seeder, tensor, chunk as u64, *digest) {
                Came::Right => {
                    if let Some(place) = place.get_mut(chunk) {
                        *place = *word;
                    }
                    self.ledger.stored(tensor, chunk as u64);
                    self.sources.insert(seeder);
                }
                Came::Late => {}
                Came::Wrong => {
                    self.given_up(seeder);
                    return Said::More;
                }
            }
        }
        Said::More
    }

    /// Its connection is closed; it may be asked anew.
    fn given_up(&mut self, seeder: MemberId) {
        self.connected.remove(&seeder);
        self.owed.remove(&seeder);
        self.ledger.lost(seeder);
    }

    fn done(&self) -> Said {
        let mut weights = None;
        for (is_weights, words, expected) in &self.tensors {
            let content = (
                words.first().copied().unwrap_or_default(),
                words.get(1).copied().unwrap_or_default(),
            );
            if *words != self::words(content) {
                return Said::Wrong(format!("a tensor is torn: {words:?}"));
            }
            if expected.is_some_and(|e| e != root_of(content)) {
                return Said::Wrong(format!("{content:?} is not what was elected"));
            }
            if *is_weights {
                weights = Some(content);
            }
        }
        Said::Done(weights.unwrap_or_default(), self.sources.len())
    }

    /// The weights as they are after a part of all has come; none if all has, or nothing.
    pub(super) fn broken_off(&self) -> Option<Content> {
        if self.sources.is_empty() || self.ledger.is_complete() {
            return None;
        }
        let (_, words, _) = self.tensors.iter().find(|(weights, ..)| *weights)?;
        Some((*words.first()?, *words.get(1)?))
    }

    /// Whether something of it has come.
    pub(super) fn has_begun(&self) -> bool {
        !self.sources.is_empty()
    }

    /// Whether the weights are part of it.
    pub(super) fn has_weights(&self) -> bool {
        self.tensors.iter().any(|(weights, ..)| *weights)
    }
}

impl Tensors {
    /// As an offer has them.
    pub(super) fn entries(self) -> Vec<StateEntry> {
        let entry = |key: &str, differs, content| StateEntry {
            key: key.into(),
            data_type: DataType::U64,
            count: COUNT,
            allow_content_inequality: differs,
            digest: root_of(content),
        };
        vec![
            entry("optimizer", true, self.optimizer),
            entry(WEIGHTS, false, self.weights),
        ]
    }

    fn of(self, weights: bool) -> Content {
        if weights {
            self.weights
        } else {
            self.optimizer
        }
    }
}

/// Digest of a tensor.
pub(super) fn root_of(content: Content) -> ContentDigest {
    root(DigestKind::Fast, DataType::U64, COUNT, &chunks(content))
}

fn words(content: Content) -> Vec<u64> {
    let word = |chunk: u64| {
        if chunk.is_multiple_of(2) {
            content.0
        } else {
            content.1
        }
    };
    (0..CHUNKS).map(word).collect()
}

fn chunks(content: Content) -> Vec<ContentDigest> {
    let words = words(content).into_iter();
    let digest = |(chunk, word): (u64, u64)| {
        let bytes = [chunk.to_le_bytes(), word.to_le_bytes()].concat();
        chunk_digest(DigestKind::Fast, &bytes)
    };
    (0..).zip(words).map(digest).collect()
}

/// The tensor that must be the same.
pub(super) const WEIGHTS: &str = "weights";

/// Chunks of a tensor: several requests to several seeders.
const CHUNKS: u64 = 20;

/// Elements of a tensor.
const COUNT: u64 = CHUNKS * CHUNK_BYTES / 8;

/// Steps of the fetch that a silent seeder lets pass.
const SILENT_STEPS: u32 = 12;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::ids::{Round, Serial, Tag, Token};
    use crate::types::{OpKey, OpKind};
    use crate::wire::control::{FetchEntry, MemberInfo, OpName};

    fn plan(fetch: Vec<FetchEntry>, seeders: u64) -> SyncPlan {
        let kind = OpKind::Sync;
        let info = |id| MemberInfo {
            id: MemberId(id),
            name: String::new(),
            addresses: Vec::new(),
            token: Token(0),
            key: None,
        };
        SyncPlan {
            op: OpName {
                round: Round(0),
                key: OpKey { kind, tag: Tag(0) },
                attempt: 0,
            },
            quoted: Serial::default(),
            revision: 0,
            fetch: Arc::new(fetch),
            seeders: (0..seeders).map(info).collect(),
            readers: Vec::new(),
        }
    }

    #[test]
    fn a_fetch_ends_with_what_was_elected_whatever_its_seeders_do() {
        let mut seen = [0; 3];
        for seed in 0..3_000 {
            let mut rng = Rng::new(seed);
            let elected = (7, rng.below(2));
            let own = Tensors {
                optimizer: (9, 0),
                weights: (7, 1),
            };
            let seeders = rng.range(1, 4);
            let entry = |key: &str, digest| FetchEntry {
                key: key.into(),
                digest,
            };
            let mut fetch = vec![entry(WEIGHTS, Some(root_of(elected)))];
            if rng.chance(500) {
                fetch.insert(0, entry("optimizer", None));
            }
            let mut fetch = Fetch::new(&plan(fetch, seeders), own, &mut rng);
            let has = |id| Tensors {
                optimizer: (id, 0),
                weights: elected,
            };
            let mut steps = 0;
            let (weights, sources) = loop {
                steps += 1;
                assert!(steps < 2_000, "seed {seed}: {fetch:?}");
                // Each may be out of reach now and then, which breaks its connection.
                let reached = (0..seeders).filter(|_| rng.chance(990));
                let reached: Vec<_> = reached.map(|id| (MemberId(id), has(id))).collect();
                match fetch.step(&reached, &mut rng) {
                    Said::Done(weights, sources) => break (weights, sources),
                    Said::Wrong(what) => panic!("seed {seed}: {what}"),
                    Said::More | Said::Nobody => {}
                }
            };
            assert_eq!(weights, elected);
            let these = [sources > 1, fetch.lies > 0, fetch.stalls > 0];
            seen.iter_mut()
                .zip(these)
                .for_each(|(n, seen)| *n += u32::from(seen));
        }
        assert!(seen.iter().all(|n| *n > 100), "{seen:?}");
    }
}
