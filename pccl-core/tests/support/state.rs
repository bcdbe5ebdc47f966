//! Shared states of several members, as the scenarios of the C++ library's tests have them.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use pccl_core::config::PeerConfig;
use pccl_core::error::{Error, Result};
use pccl_core::ids::PeerGroup;
use pccl_core::types::{DataType, SyncStrategy};
use pccl_core::wire::reason::{AbortReason, EvictReason};
use pccl_core::{Communicator, Master, SharedState, SyncInfo};

use super::{each, master};

/// Bytes of a tensor, where a scenario says nothing else.
pub(crate) const BYTES: usize = 1024;

/// What one member brings to a synchronisation: tensors of bytes.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct State {
    pub(crate) revision: u64,
    pub(crate) strategy: SyncStrategy,
    pub(crate) tensors: Vec<(String, Vec<u8>)>,
}

impl State {
    /// One tensor "key1", full of one value, at revision 0.
    pub(crate) fn simple(value: u8) -> Self {
        Self::of(&[("key1", value)])
    }

    /// Tensors, each full of one value, at revision 0.
    pub(crate) fn of(tensors: &[(&str, u8)]) -> Self {
        let tensors = tensors.iter();
        Self {
            revision: 0,
            strategy: SyncStrategy::EnforcePopular,
            tensors: tensors
                .map(|(key, value)| ((*key).to_owned(), vec![*value; BYTES]))
                .collect(),
        }
    }

    /// The same with another strategy.
    pub(crate) fn with(mut self, strategy: SyncStrategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// The same at another revision.
    pub(crate) fn at(mut self, revision: u64) -> Self {
        self.revision = revision;
        self
    }

    /// Synchronises it.
    pub(crate) fn sync(&mut self, member: &Communicator) -> Result<SyncInfo> {
        let mut state = SharedState::new(self.revision);
        for (key, bytes) in &mut self.tensors {
            state.add(key.as_str(), DataType::U8, bytes, false).unwrap();
        }
        let result = member.sync_shared_state(&mut state, self.strategy);
        let revision = state.revision;
        drop(state);
        self.revision = revision;
        result
    }

    /// Content of a tensor that is full of one value.
    pub(crate) fn value(&self, tensor: usize) -> u8 {
        let bytes = &self.tensors[tensor].1;
        assert!(bytes.iter().all(|b| *b == bytes[0]), "it is torn");
        bytes[0]
    }
}

/// All members synchronise at the same time.
pub(crate) fn sync(members: &[Communicator], states: &mut [State]) -> Vec<Result<SyncInfo>> {
    assert_eq!(members.len(), states.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = members
            .iter()
            .zip(states)
            .map(|(member, state)| scope.spawn(move || state.sync(member)))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// Bytes given and fetched, of a synchronisation in which all succeed.
pub(crate) fn moved(results: &[Result<SyncInfo>]) -> Vec<(u64, u64)> {
    let info = results.iter().map(|r| r.as_ref().unwrap());
    info.map(|i| (i.tx_bytes, i.rx_bytes)).collect()
}

/// All succeed, and nothing is moved.
pub(crate) fn assert_quiet(results: &[Result<SyncInfo>]) {
    assert!(moved(results).iter().all(|m| *m == (0, 0)), "{results:?}");
}

/// Who succeeds.
pub(crate) fn succeeded(results: &[Result<SyncInfo>]) -> Vec<bool> {
    results.iter().map(Result::is_ok).collect()
}

/// What a member is told that has to leave for the state that it brought.
pub(crate) fn told(result: &Result<SyncInfo>) -> &str {
    match result {
        Err(Error::Evicted(EvictReason::State { what })) => what,
        Err(Error::Aborted {
            reason: AbortReason::State { what },
            ..
        }) => what,
        other => panic!("{other:?}"),
    }
}

/// A run whose members have joined one by one, in this order, each in the group given.
pub(crate) fn members_of(groups: &[u32]) -> (Master, Vec<Communicator>) {
    let (master, address) = master();
    let mut members = Vec::new();
    for group in groups {
        add(&mut members, &address, *group);
    }
    (master, members)
}

/// A run of one group whose members have joined one by one.
pub(crate) fn members(size: usize) -> (Master, Vec<Communicator>) {
    members_of(&vec![0; size])
}

/// One more member joins.
pub(crate) fn add(members: &mut Vec<Communicator>, address: &str, group: u32) {
    let config = PeerConfig {
        group: PeerGroup(group),
        ..PeerConfig::default()
    };
    add_with(members, address, config);
}

/// One more member joins, with these settings.
pub(crate) fn add_with(members: &mut Vec<Communicator>, address: &str, config: PeerConfig) {
    let newcomer = Communicator::new(address, config).unwrap();
    std::thread::scope(|scope| {
        let joining = scope.spawn(|| newcomer.connect(None).unwrap());
        let admitted = |size: u32| size as usize > members.len();
        let mut size = 0;
        while !members.is_empty() && !admitted(size) {
            each(members, |_, member| member.update_topology().unwrap());
            size = members[0].attributes().global_world_size;
        }
        joining.join().unwrap();
    });
    members.push(newcomer);
}
