//! A process that is killed costs the others one failed operation, and little time.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use pccl_core::CallOptions;
use pccl_core::error::Error;
use pccl_core::ids::Tag;
use pccl_core::types::QuantizationAlgorithm::MinMax;
use pccl_core::types::{Algorithm, QuantizedType, ReduceOp};
use pccl_core::wire::reason::{AbortReason, LossCause};
use support::{PEER_TIMEOUT, each, peer, within_limit};

const ADDRESS: &str = "PCCL_TEST_MASTER";
const COUNT: usize = 300_000;

/// The process that is going to be killed: it joins, says so, and holds still.
#[test]
fn victim() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let communicator = peer(&address);
    support::join_until(&communicator, 4);
    let mut buffer = vec![1f32; COUNT];
    communicator
        .all_reduce_in_place(&mut buffer, ReduceOp::Sum, Tag(0))
        .unwrap();
    println!("ready");
    std::thread::park();
}

fn spawn(address: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["victim", "--exact", "--nocapture"])
        .env(ADDRESS, address)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn the_others_fail_alike_with_their_buffers_restored_and_go_on() {
    if std::env::var(ADDRESS).is_ok() {
        return;
    }
    within_limit(|| {
        let (_master, address) = support::master();
        let members: Vec<_> = (0..3).map(|_| peer(&address)).collect();
        members[0].connect(None).unwrap();
        let mut victim = spawn(&address);
        each(&members, |n, m| {
            if n == 0 {
                support::grow_until(m, 4);
            } else {
                support::join_until(m, 4);
            }
            let mut buffer = vec![1f32; COUNT];
            m.all_reduce_in_place(&mut buffer, ReduceOp::Sum, Tag(0))
                .unwrap();
            assert!(buffer.iter().all(|x| *x == 4.0));
        });
        let mut said = BufReader::new(victim.stdout.take().unwrap()).lines();
        assert!(said.any(|line| line.unwrap().contains("ready")));

        let begun = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            let killer = scope.spawn(|| {
                begun.wait();
                victim.kill().unwrap();
                victim.wait().unwrap();
                Instant::now()
            });
            let failures = each(&members, |n, m| {
                let before: Vec<f32> = (0..COUNT).map(|i| (i + n) as f32).collect();
                let mut buffer = before.clone();
                let quantized = ReduceOp::Sum.quantized(MinMax, QuantizedType::U8);
                let straight = [Algorithm::Star, Algorithm::Direct].map(|by| ReduceOp::Sum.by(by));
                let others = [quantized, quantized.by(Algorithm::Direct)].into_iter();
                let others = others.chain(straight).zip(1..).map(|(what, tag)| {
                    let options = CallOptions::default();
                    m.all_reduce_async(before.clone(), what, Tag(tag), options)
                });
                let others: Vec<_> = others.collect();
                begun.wait();
                let failed = m.all_reduce_in_place(&mut buffer, ReduceOp::Sum, Tag(0));
                let at = Instant::now();
                assert!(buffer == before, "the buffer was not restored");
                for other in others {
                    let (buffer, failed) = other.wait();
                    assert!(matches!(failed, Err(Error::Aborted { .. })));
                    assert!(buffer == before, "another buffer was not restored");
                }
                let Err(Error::Aborted { reason, .. }) = failed else {
                    panic!("{failed:?}");
                };
                (reason, at)
            });
            let killed = killer.join().unwrap();
            for (reason, at) in &failures {
                assert_eq!(reason, &failures[0].0, "they were told different things");
                assert!(at.saturating_duration_since(killed) < PEER_TIMEOUT);
            }
            // Its lanes die with it, and are not what the others are told of.
            let died = |reason: &AbortReason| matches!(reason, AbortReason::MemberLost { cause, .. } if *cause == LossCause::Died);
            assert!(died(&failures[0].0), "{}", failures[0].0);
        });

        let worlds = each(&members, |_, m| {
            let mut buffer = vec![1f32; COUNT];
            let info = m
                .all_reduce_in_place(&mut buffer, ReduceOp::Sum, Tag(0))
                .unwrap();
            // Equal elements are exact.
            let quantized = ReduceOp::Sum.quantized(MinMax, QuantizedType::I16);
            let mut ones = vec![1f64; COUNT];
            m.all_reduce_in_place(&mut ones, quantized, Tag(1)).unwrap();
            assert!(ones.iter().all(|x| *x == 3.0));
            for (algorithm, tag) in Algorithm::ALL.into_iter().zip(2..) {
                let mut ones = vec![1f32; COUNT];
                m.all_reduce_in_place(&mut ones, ReduceOp::Sum.by(algorithm), Tag(tag))
                    .unwrap();
                assert!(ones.iter().all(|x| *x == 3.0));
            }
            (info.world_size, buffer[COUNT - 1])
        });
        assert_eq!(worlds, [(3, 3.0); 3]);
    });
}
