//! All algorithms over real sockets: asked for by all, by some, and where there is no plan.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::net::{SocketAddr, TcpListener};
#[cfg(feature = "testing")]
use std::time::{Duration, Instant};

use pccl_core::config::PeerConfig;
use pccl_core::error::Error;
use pccl_core::ids::Tag;
#[cfg(feature = "testing")]
use pccl_core::testing::{Relay, Rules};
use pccl_core::types::QuantizationAlgorithm::MinMax;
use pccl_core::types::{Algorithm, QuantizedType, ReduceOp, Reduction};
use pccl_core::wire::reason::{AbortReason, RequestCause};
use pccl_core::{CallOptions, Communicator};
use support::{each, group, grow_until, is_aborted, master, peer, within_limit};

/// Several segments for each slice.
const COUNT: usize = 1_000_003;

fn contribution(member: usize) -> Vec<f32> {
    (0..COUNT)
        .map(|i| ((i * 7 + member * 13) % 101) as f32 * 0.37 - 11.0)
        .collect()
}

/// What all members have in the end, in place at every other one, and the bytes that each sent.
fn reduce(members: &[Communicator], what: Reduction, tag: u64) -> (Vec<u32>, Vec<u64>) {
    let ends = each(members, |n, member| {
        let mut recv = contribution(n);
        let info = if n % 2 == 0 {
            member.all_reduce_in_place(&mut recv, what, Tag(tag))
        } else {
            member.all_reduce(&contribution(n), &mut recv, what, Tag(tag))
        };
        let bits: Vec<u32> = recv.iter().map(|x| x.to_bits()).collect();
        (bits, info.unwrap().tx_bytes)
    });
    let (results, sent): (Vec<_>, Vec<_>) = ends.into_iter().unzip();
    assert!(results.iter().all(|result| *result == results[0]));
    (results.into_iter().next().unwrap(), sent)
}

#[test]
fn four_members_go_by_every_algorithm_that_is_asked_for() {
    within_limit(|| {
        let (_master, members) = group(4);
        let by = |algorithm| ReduceOp::Avg.by(algorithm);
        let (ring, around) = reduce(&members, by(Algorithm::Ring), 1);
        let (direct, straight) = reduce(&members, by(Algorithm::Direct), 2);
        assert!(ring == direct, "other bits than those of the ring");
        for sent in around.iter().chain(&straight) {
            assert!(sent.abs_diff(6 * COUNT as u64) <= 24, "{sent}");
        }
        let (star, sent) = reduce(&members, by(Algorithm::Star), 3);
        let whole = 4 * COUNT as u64;
        let mut sent = sent;
        sent.sort_unstable();
        assert_eq!(sent, [whole, whole, whole, 3 * whole]);
        let exact = |i: usize| (0..4).map(|n| contribution(n)[i]).sum::<f32>() / 4.0;
        for i in [0, 1, COUNT / 2, COUNT - 1] {
            assert!((f32::from_bits(star[i]) - exact(i)).abs() < 1e-3);
        }
        // Quantised once by each contributor, and once by who adds: half a step each.
        let codes = ReduceOp::Avg.quantized(MinMax, QuantizedType::U8);
        for algorithm in [Algorithm::Star, Algorithm::Direct] {
            let (result, _) = reduce(&members, codes.by(algorithm), 4);
            let bound = 100.0 * 0.37 / 255.0 / 2.0 * (3.0 / 4.0 + 1.0) + 1e-3;
            for i in [0, 1, COUNT / 2, COUNT - 1] {
                assert!((f32::from_bits(result[i]) - exact(i)).abs() <= bound);
            }
        }
    });
}

#[test]
fn members_that_ask_for_different_algorithms_are_told_which() {
    within_limit(|| {
        let (_master, members) = group(3);
        let results = each(&members, |n, member| {
            let mut buffer = contribution(n);
            let algorithm = if n == 1 {
                Algorithm::Direct
            } else {
                Algorithm::Ring
            };
            let sum = ReduceOp::Sum.by(algorithm);
            let result = member.all_reduce_in_place(&mut buffer, sum, Tag(1));
            assert!(buffer == contribution(n), "not restored");
            result
        });
        for result in results {
            let Err(Error::Aborted { reason, .. }) = result else {
                panic!("{result:?}");
            };
            assert!(reason.is_mismatch());
            let text = reason.to_string();
            assert!(
                text.contains("by ring") && text.contains("by direct"),
                "{text}"
            );
        }
    });
}

/// More members than exchange directly, and one lets the size decide as the others do.
#[test]
fn an_algorithm_without_a_plan_fails_at_once_for_all() {
    within_limit(|| {
        let (_master, members) = group(17);
        let results = each(&members, |n, member| {
            let mut buffer = vec![n as f32; 100];
            let sum = ReduceOp::Sum.by(Algorithm::Direct);
            let failed = member.all_reduce_in_place(&mut buffer, sum, Tag(1));
            assert_eq!(buffer, vec![n as f32; 100]);
            let options = CallOptions::default();
            member
                .all_reduce_in_place_with(&mut buffer, ReduceOp::Max, Tag(2), options)
                .unwrap();
            assert_eq!(buffer, vec![16.0; 100]);
            failed
        });
        for result in results {
            let Err(Error::Aborted { reason, .. }) = result else {
                panic!("{result:?}");
            };
            let cause = RequestCause::NoPlan {
                algorithm: Algorithm::Direct,
            };
            assert!(reason.is_mismatch(), "a retry would do no better");
            assert!(
                matches!(&reason, AbortReason::Requested { cause: c, .. } if *c == cause),
                "{reason}"
            );
        }
    });
}

/// Members that dial out, and that nobody can dial: all but the first listen where only others would look.
#[test]
fn members_that_reach_one_other_only_exchange_through_it() {
    within_limit(|| {
        let nowhere: SocketAddr = "[::1]:0".parse().unwrap();
        if TcpListener::bind(nowhere).is_err() {
            // Without a second loopback address there is nobody whom the master sees at the wrong one.
            return;
        }
        let (_master, address) = master();
        let leaf = || {
            let config = PeerConfig {
                listen: Some(nowhere.into()),
                ..PeerConfig::default()
            };
            Communicator::new(&address, config).unwrap()
        };
        let members = [peer(&address), leaf(), leaf(), leaf()];
        gathered(&members);
        let exact = |i: usize| (0..4).map(|n| contribution(n)[i]).sum::<f32>() / 4.0;
        let quantized = ReduceOp::Avg.quantized(MinMax, QuantizedType::U16);
        for (tag, what) in [(1, ReduceOp::Avg.into()), (2, quantized)] {
            let (result, sent) = reduce(&members, what, tag);
            assert!((f32::from_bits(result[COUNT - 1]) - exact(COUNT - 1)).abs() < 1e-2);
            assert_eq!(sent[0], 3 * sent[1]);
        }
        let around = ReduceOp::Sum.by(Algorithm::Ring);
        let failed = each(&members, |_, member| {
            member.all_reduce_in_place(&mut [1.0f32], around, Tag(3))
        });
        assert!(failed.iter().all(is_aborted));
    });
}

/// Members that are 100 ms from one another, and from the master.
#[cfg(feature = "testing")]
#[test]
fn a_kibibyte_takes_little_more_than_two_round_trips() {
    within_limit(|| {
        let far = Rules {
            delay: ROUND_TRIP / 2,
            ..Rules::default()
        };
        let (_master, address) = master();
        let mut relays = vec![Relay::start(address.parse().unwrap()).unwrap()];
        let masters = relays[0].address().to_string();
        let members: Vec<Communicator> = (0..4)
            .map(|_| {
                let free = TcpListener::bind("127.0.0.1:0").unwrap();
                let listen = free.local_addr().unwrap();
                drop(free);
                let relay = Relay::start(listen).unwrap();
                let config = PeerConfig {
                    listen: Some(listen.into()),
                    announce: vec![relay.address().into()],
                    ..PeerConfig::default()
                };
                relays.push(relay);
                Communicator::new(&masters, config).unwrap()
            })
            .collect();
        relays.iter().for_each(|relay| relay.set(far));
        gathered(&members);
        let shortest = |reduction: Reduction, tag: u64| {
            let times = each(&members, |_, member| {
                let times = (0..6).map(|_| {
                    let begin = Instant::now();
                    let mut buffer = [1.0f32; 256];
                    member
                        .all_reduce_in_place(&mut buffer, reduction, Tag(tag))
                        .unwrap();
                    begin.elapsed()
                });
                times.min().unwrap()
            });
            times.into_iter().max().unwrap()
        };
        let (chosen, ring) = (
            shortest(ReduceOp::Sum.into(), 1),
            shortest(ReduceOp::Sum.by(Algorithm::Ring), 2),
        );
        assert!(chosen <= ROUND_TRIP * 5 / 2, "{chosen:?}");
        // Six hops, and the verdict: the relays do delay.
        assert!(ring >= ROUND_TRIP * 3, "{ring:?}");
    });
}

/// Lets members join one after the other, so that the first one is the first.
fn gathered(members: &[Communicator]) {
    members[0].connect(None).unwrap();
    for (n, newcomer) in members.iter().enumerate().skip(1) {
        std::thread::scope(|scope| {
            scope.spawn(|| newcomer.connect(None).unwrap());
            each(&members[..n], |_, member| grow_until(member, n as u32 + 1));
        });
    }
}

#[cfg(feature = "testing")]
const ROUND_TRIP: Duration = Duration::from_millis(100);
