//! Stamps: everybody is shown the same world sizes with the same verdict, attributes never go
//! back, and the size shown when a call began is the number of contributors when it commits.
//! Rules 1, 16.

use std::collections::BTreeMap;

use crate::ids::{PeerGroup, ViewId};
use crate::sim::core::ProcId;
use crate::sim::oracle::{TryKey, UseKey};
use crate::types::Attributes;
use crate::wire::control::Stamp;

/// State of the invariant.
#[derive(Default, Debug)]
pub(in crate::sim) struct Stamps {
    uses: BTreeMap<UseKey, (ProcId, Stamp)>,
    votes: BTreeMap<(PeerGroup, TryKey), Told>,
    shown: BTreeMap<ProcId, (ViewId, Attributes)>,
}

/// What a member was told at the end of a unanimous call.
#[derive(Clone, Copy, Debug)]
struct Told {
    proc: ProcId,
    stamp: Stamp,
    /// Whether it had been shown that view before: then it may stand in for an older one, of a try
    /// that failed before this member called, since attributes never go back.
    known: bool,
}

impl Stamps {
    /// A member was given a verdict with this stamp.
    pub(in crate::sim) fn verdict(
        &mut self,
        proc: ProcId,
        key: UseKey,
        stamp: Stamp,
    ) -> Result<(), String> {
        let first = *self.uses.entry(key).or_insert((proc, stamp));
        if first.1 != stamp {
            return Err(format!(
                "{key:?}: stamp {:?} at {:?}, {stamp:?} at {proc:?}",
                first.1, first.0
            ));
        }
        Ok(())
    }

    /// A member of `group` was given the end of a unanimous call with this stamp.
    pub(in crate::sim) fn vote(
        &mut self,
        proc: ProcId,
        group: PeerGroup,
        vote: TryKey,
        stamp: Stamp,
    ) -> Result<(), String> {
        let view = self.shown.get(&proc).map(|(view, _)| *view);
        let known = view == Some(stamp.view);
        let told = Told { proc, stamp, known };
        let first = self.votes.entry((group, vote)).or_insert(told);
        let (older, newer) = match first.stamp.view <= stamp.view {
            true => (*first, told),
            false => (told, *first),
        };
        if older.stamp != newer.stamp && !(newer.known && older.stamp.view < newer.stamp.view) {
            return Err(format!(
                "{vote:?}: stamp {:?} at {:?}, {stamp:?} at {proc:?}",
                first.stamp, first.proc
            ));
        }
        *first = older;
        Ok(())
    }

    /// A call returned with a stamp, and the library shows these attributes since. `others_open`:
    /// a verdict on another open call may have moved them further already.
    pub(in crate::sim) fn shown(
        &mut self,
        proc: ProcId,
        stamp: Stamp,
        shows: Attributes,
        others_open: bool,
    ) -> Result<(), String> {
        let entry = self
            .shown
            .entry(proc)
            .or_insert((stamp.view, stamp.attributes));
        if stamp.view >= entry.0 {
            *entry = (stamp.view, stamp.attributes);
        }
        if entry.1 != shows && !others_open {
            return Err(format!(
                "{proc:?} shows {shows:?}; its highest stamp is {:?} of {}",
                entry.1, entry.0
            ));
        }
        Ok(())
    }

    /// The member is none any more: it is alone, and starts anew.
    pub(in crate::sim) fn gone(&mut self, proc: ProcId, shows: Attributes) -> Result<(), String> {
        self.shown.remove(&proc);
        if shows != Attributes::ALONE {
            return Err(format!("{proc:?} is no member and shows {shows:?}"));
        }
        Ok(())
    }
}

/// A commit over `contributors` members was called when `shown` was the group's size.
pub(in crate::sim) fn committed(
    key: UseKey,
    contributors: usize,
    shown: u32,
) -> Result<(), String> {
    if contributors as u32 == shown {
        return Ok(());
    }
    Err(format!(
        "{key:?} committed over {contributors} members; its caller was shown {shown}"
    ))
}
