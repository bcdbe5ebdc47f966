//! Which members to fetch from, and which to leave alone for a while.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::ids::MemberId;
use crate::wire::control::MemberInfo;

/// Members that hold what is wanted, in the order in which they are tried.
#[derive(Debug)]
pub(super) struct Seeders {
    all: Vec<Seeder>,
}

#[derive(Debug)]
struct Seeder {
    info: MemberInfo,
    busy: bool,
    /// Tries that failed, and what the last one said.
    failures: u32,
    cause: String,
    /// Not to be tried before.
    not_before: Option<Instant>,
}

impl Seeders {
    /// Members that fetch together begin at different seeders.
    pub(super) fn new(seeders: &[MemberInfo], own: MemberId) -> Self {
        let mut all: Vec<Seeder> = seeders
            .iter()
            .filter(|info| info.id != own)
            .map(|info| Seeder {
                info: info.clone(),
                busy: false,
                failures: 0,
                cause: String::new(),
                not_before: None,
            })
            .collect();
        let turn = own.0 % (all.len().max(1) as u64);
        all.rotate_left(turn as usize);
        Self { all }
    }

    /// Other seeders from now on. Each has all its tries again; those that are being fetched from
    /// stay so. Returns those of them that are off the list.
    pub(super) fn replace(&mut self, seeders: &[MemberInfo], own: MemberId) -> Vec<MemberId> {
        let mut next = Self::new(seeders, own);
        let mut off = Vec::new();
        for seeder in self.all.drain(..).filter(|s| s.busy) {
            match next.all.iter_mut().find(|s| s.info.id == seeder.info.id) {
                Some(same) => same.busy = true,
                // Not to be tried again once it has ended.
                None => {
                    off.push(seeder.info.id);
                    next.all.push(Seeder {
                        failures: TRIES,
                        ..seeder
                    });
                }
            }
        }
        *self = next;
        off
    }

    /// Seeders that are being fetched from.
    pub(super) fn busy(&self) -> usize {
        self.all.iter().filter(|s| s.busy).count()
    }

    /// The next one to fetch from; it is busy from now on.
    pub(super) fn pick(&mut self, now: Instant) -> Option<MemberInfo> {
        let due = |s: &&mut Seeder| s.is_idle() && s.not_before.is_none_or(|t| t <= now);
        // Those that have failed least come first.
        let seeder = self.all.iter_mut().filter(due).min_by_key(|s| s.failures)?;
        seeder.busy = true;
        Some(seeder.info.clone())
    }

    /// Fetching from a seeder has ended.
    pub(super) fn ended(&mut self, id: MemberId, result: Result<(), String>) {
        let Some(seeder) = self.all.iter_mut().find(|s| s.info.id == id) else {
            return;
        };
        seeder.busy = false;
        if let Err(cause) = result {
            tracing::info!(target: "pccl::peer", seeder = %id, cause, "fetching state failed");
            seeder.cause = cause;
            // The first retry is at once. (Rule 12)
            let wait = FIRST_WAIT * seeder.failures;
            seeder.not_before = Instant::now().checked_add(wait);
            seeder.failures = (seeder.failures + 1).min(TRIES);
        }
    }

    /// When the next one may be tried.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        let idle = self.all.iter().filter(|s| s.is_idle());
        idle.filter_map(|s| s.not_before).min()
    }

    /// Whether nobody is left to fetch from.
    pub(super) fn exhausted(&self) -> bool {
        !self.all.iter().any(|s| s.busy || s.is_idle())
    }

    /// What each seeder's last try said, for people.
    pub(super) fn causes(&self) -> String {
        let mut text = String::new();
        for seeder in self.all.iter().take(NAMED) {
            let separator = if text.is_empty() { "" } else { "; " };
            // Writing to a string does not fail.
            let _ = write!(text, "{separator}{}: {}", seeder.info.id, seeder.cause);
        }
        if text.is_empty() {
            text.push_str("no member can give it");
        }
        text
    }
}

impl Seeder {
    fn is_idle(&self) -> bool {
        !self.busy && self.failures < TRIES
    }
}

/// Tries with one seeder.
const TRIES: u32 = 4;

/// Wait before the second retry; each later one waits for one more of these.
const FIRST_WAIT: Duration = Duration::from_millis(300);

/// Seeders named in one reason.
const NAMED: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Token;

    fn infos(ids: &[u64]) -> Vec<MemberInfo> {
        let info = |id: &u64| MemberInfo {
            id: MemberId(*id),
            name: String::new(),
            addresses: Vec::new(),
            token: Token(0),
            key: None,
        };
        ids.iter().map(info).collect()
    }

    #[test]
    fn members_begin_at_different_seeders_and_never_at_themselves() {
        let now = Instant::now();
        let first = |own| {
            Seeders::new(&infos(&[1, 2, 3]), MemberId(own))
                .pick(now)
                .unwrap()
                .id
        };
        let firsts: Vec<_> = (10..13).map(first).collect();
        assert_eq!(firsts, [MemberId(2), MemberId(3), MemberId(1)]);
        assert!(Seeders::new(&infos(&[5]), MemberId(5)).exhausted());
    }

    #[test]
    fn a_seeder_that_fails_is_retried_a_few_times_and_then_named() {
        let mut seeders = Seeders::new(&infos(&[1]), MemberId(9));
        for _ in 0..TRIES {
            assert!(!seeders.exhausted());
            let later = Instant::now() + Duration::from_secs(60);
            let id = seeders.pick(later).unwrap().id;
            assert!(seeders.pick(later).is_none() && seeders.busy() == 1);
            seeders.ended(id, Err("gone".into()));
        }
        assert!(seeders.exhausted() && seeders.retry_at().is_none());
        assert_eq!(seeders.causes(), "m1: gone");
        assert_eq!(seeders.replace(&infos(&[1, 2]), MemberId(9)), []);
        assert!(!seeders.exhausted());
    }

    #[test]
    fn a_seeder_that_is_taken_off_the_list_is_used_until_it_ends() {
        let now = Instant::now();
        let mut seeders = Seeders::new(&infos(&[1]), MemberId(9));
        let id = seeders.pick(now).unwrap().id;
        assert_eq!(seeders.replace(&infos(&[]), MemberId(9)), [MemberId(1)]);
        assert!(seeders.busy() == 1 && !seeders.exhausted());
        seeders.ended(id, Ok(()));
        assert!(seeders.exhausted());
    }
}
