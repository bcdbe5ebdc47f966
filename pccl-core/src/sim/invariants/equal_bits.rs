//! Same bits: after a commit every member holds the same bytes, and they are what the reference
//! computes over exactly the members of the ring, each with its own contribution. Promise 2,
//! rules 4, 7, 9, 10, 11.

use std::collections::BTreeMap;

use crate::ids::MemberId;
use crate::sim::core::ProcId;
use crate::sim::oracle::UseKey;
use crate::sim::reference::{self, Way};
use crate::types::{Algorithm, ReduceDescriptor};
use crate::wire::control::GroupView;

/// State of the invariant.
#[derive(Default, Debug)]
pub(in crate::sim) struct EqualBits {
    uses: BTreeMap<UseKey, Use>,
    states: BTreeMap<UseKey, (u64, (u64, u64))>,
}

#[derive(Default, Debug)]
struct Use {
    given: BTreeMap<MemberId, Given>,
    reference: Option<(Vec<MemberId>, Vec<u8>)>,
}

/// What a member brought into a use.
#[derive(Debug)]
struct Given {
    descriptor: ReduceDescriptor,
    ring: Vec<MemberId>,
    way: Way,
    bytes: Vec<u8>,
}

impl EqualBits {
    /// A member's engine starts a use.
    pub(in crate::sim) fn started(
        &mut self,
        key: UseKey,
        own: MemberId,
        descriptor: ReduceDescriptor,
        group: &GroupView,
        bytes: Vec<u8>,
    ) {
        let hub = group.choice.hub.and_then(|hub| group.rank(hub));
        let given = Given {
            descriptor,
            ring: group.ring.iter().map(|member| member.id).collect(),
            way: match group.choice.algorithm(&descriptor) {
                Algorithm::Ring => Way::Around,
                Algorithm::Direct => Way::Straight,
                Algorithm::Star => Way::Through(hub.unwrap_or(usize::MAX)),
            },
            bytes,
        };
        self.uses.entry(key).or_default().given.insert(own, given);
    }

    /// A member was given the commit of a synchronisation, and holds this content.
    pub(in crate::sim) fn synced(
        &mut self,
        key: UseKey,
        revision: u64,
        content: (u64, u64),
    ) -> Result<(), String> {
        let first = *self.states.entry(key).or_insert((revision, content));
        if first == (revision, content) {
            return Ok(());
        }
        Err(format!(
            "{key:?} left {first:?} at one member, {:?} at another",
            (revision, content)
        ))
    }

    /// A member was given a commit, and holds `bytes`.
    pub(in crate::sim) fn committed(
        &mut self,
        proc: ProcId,
        key: UseKey,
        own: MemberId,
        bytes: &[u8],
    ) -> Result<(), String> {
        let entry = self.uses.entry(key).or_default();
        let Some(mine) = entry.given.get(&own) else {
            return Err(format!(
                "{key:?} committed at {proc:?} ({own}), which never started it"
            ));
        };
        let (descriptor, way, ring) = (mine.descriptor, mine.way, mine.ring.clone());
        if entry.reference.is_none() {
            let mut inputs = Vec::new();
            for member in &ring {
                let Some(given) = entry.given.get(member) else {
                    return Err(format!(
                        "{key:?} committed at {own} over {ring:?}, but {member} gave nothing"
                    ));
                };
                if given.descriptor != descriptor {
                    return Err(format!(
                        "{key:?} committed with {descriptor} at {own}, {} at {member}",
                        given.descriptor
                    ));
                }
                if given.way != way {
                    return Err(format!(
                        "{key:?} committed {way:?} at {own}, {:?} at {member}",
                        given.way
                    ));
                }
                inputs.push(given.bytes.as_slice());
            }
            let expected = reference::all_reduce(descriptor, way, &inputs)
                .map_err(|e| format!("{key:?}: no reference: {e}"))?;
            entry.reference = Some((ring.clone(), expected));
        }
        let Some((first_ring, expected)) = &entry.reference else {
            return Ok(());
        };
        if *first_ring != ring {
            return Err(format!(
                "{key:?} committed over {first_ring:?} at one member, over {ring:?} at {own}"
            ));
        }
        if expected != bytes {
            return Err(format!(
                "{key:?} ({descriptor}) committed at {own} with {bytes:02x?}, expected \
                 {expected:02x?}"
            ));
        }
        Ok(())
    }
}
