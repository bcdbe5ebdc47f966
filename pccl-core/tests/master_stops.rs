//! A master that stops ends every call of every member.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use pccl_core::error::Error;
use pccl_core::ids::Tag;
use pccl_core::types::ReduceOp;
use support::{each, group, within_limit};

#[test]
fn all_calls_fail_at_once_and_later_ones_too() {
    within_limit(|| {
        let (mut master, members) = group(3);
        let begun = std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begun.wait();
                master.stop();
            });
            each(&members, |n, m| {
                let ended = match n {
                    0 => {
                        begun.wait();
                        m.update_topology()
                    }
                    1 => {
                        begun.wait();
                        m.all_reduce_in_place(&mut [0u8; 10], ReduceOp::Sum, Tag(0))
                            .map(drop)
                    }
                    // Without it no call of the others can complete.
                    _ => Err(Error::MasterStopped {
                        address: String::new(),
                    }),
                };
                assert!(
                    matches!(ended, Err(Error::MasterStopped { .. })),
                    "{ended:?}"
                );
            });
        });
        master.join().unwrap();
        each(&members, |_, m| {
            let late = m.update_topology();
            assert!(matches!(late, Err(Error::MasterStopped { .. })), "{late:?}");
            assert!(
                m.all_reduce_in_place(&mut [0u8; 10], ReduceOp::Sum, Tag(0))
                    .is_err()
            );
        });
    });
}

#[test]
fn its_port_is_free_at_once() {
    within_limit(|| {
        let (mut master, members) = group(2);
        let address = master.local_addr().to_string();
        master.stop();
        master.join().unwrap();
        let again = pccl_core::Master::start(&address, Default::default()).unwrap();
        assert_eq!(again.local_addr().to_string(), address);
        drop(members);
    });
}
