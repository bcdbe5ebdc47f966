use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;
use crate::collective::buffers::OwnedBuffers;
use crate::config::Timing;
use crate::ids::{Digest, Epoch, Round, Serial, Tag, Token};
use crate::testing::{Relay, Rules};
use crate::transport::sockopt::{self, Role};
use crate::types::{DataType, OpKey, OpKind, ReduceDescriptor, ReduceOp};
use crate::wire::control::{GroupView, MemberInfo, OpName};
use crate::wire::reason::RequestCause;

const LIMIT: Duration = Duration::from_secs(60);

/// A member's data thread, as its control thread would hold it.
struct Member {
    id: MemberId,
    thread: DataThread,
    events: UnboundedReceiver<DataEvent>,
    /// Events that were not what was waited for.
    seen: Vec<DataEvent>,
    lanes: u64,
}

fn member(id: u64) -> Member {
    let config = EngineConfig {
        segment: 4096,
        timing: Timing::from_peer_timeout(Duration::from_secs(30)),
        ..EngineConfig::default()
    };
    let (says, events) = unbounded_channel();
    Member {
        id: MemberId(id),
        thread: DataThread::start(config, says).unwrap(),
        events,
        seen: Vec::new(),
        lanes: 0,
    }
}

impl Member {
    /// Waits for an event that `wanted` makes something of; those before it are kept.
    fn wait<T>(&mut self, mut wanted: impl FnMut(&DataEvent) -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            let mut found = None;
            self.seen.retain(|event| {
                if found.is_none() {
                    found = wanted(event);
                    return found.is_none();
                }
                true
            });
            if let Some(found) = found {
                return found;
            }
            match self.events.try_recv() {
                Ok(event) => self.seen.push(event),
                Err(_) => std::thread::yield_now(),
            }
            assert!(begin.elapsed() < LIMIT, "{:?}", self.seen);
        }
    }

    fn lane(&mut self, peer: MemberId, stream: TcpStream) -> LaneId {
        self.lane_of(peer, (stream, None))
    }

    fn lane_of(&mut self, peer: MemberId, parts: Parts) -> LaneId {
        let stream = &parts.0;
        stream.set_nonblocking(true).unwrap();
        sockopt::apply(stream, Role::Bulk, &Timing::default());
        self.lanes += 1;
        let lane = LaneId(self.lanes);
        self.thread.open_lane(lane, peer, parts);
        lane
    }

    fn done(&mut self, tag: u64) -> Digest {
        self.wait(|event| match event {
            DataEvent::Engine(EngineEvent::Done { op, result, .. }) if op.key.tag.0 == tag => {
                Some(*result)
            }
            _ => None,
        })
    }

    fn finish(&mut self, tag: u64, commit: bool) -> OpStats {
        self.thread.finish(CallId(tag), commit);
        self.wait(|event| match event {
            DataEvent::Finished { call, stats } if call.0 == tag => Some(*stats),
            _ => None,
        })
    }

    fn closed(&mut self) -> (LaneId, bool, String) {
        self.wait(|event| match event {
            DataEvent::LaneClosed {
                lane,
                orderly,
                cause,
            } => Some((*lane, *orderly, cause.clone())),
            _ => None,
        })
    }
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A lane between two members, by way of `address`, which leads to `listener`.
fn connect(a: &mut Member, b: &mut Member, address: SocketAddr, listener: &TcpListener) {
    let dialled = TcpStream::connect(address).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    let (a_id, b_id) = (a.id, b.id);
    a.lane(b_id, dialled);
    b.lane(a_id, accepted);
}

fn group(ids: &[MemberId]) -> GroupView {
    let info = |id: &MemberId| MemberInfo {
        id: *id,
        name: String::new(),
        addresses: Vec::new(),
        token: Token(0),
        key: None,
    };
    GroupView {
        epoch: Epoch(1),
        ring: ids.iter().map(info).collect(),
        choice: crate::types::Choice::RING,
    }
}

/// Lets a member start the use `tag` of a sum over all members.
fn start(member: &Member, group: &GroupView, tag: u64, buffers: &mut OwnedBuffers) {
    let lent = buffers.lend();
    let start = StartReduce {
        call: CallId(tag),
        op: OpName {
            round: Round(1),
            key: OpKey {
                kind: OpKind::Collective,
                tag: Tag(tag),
            },
            attempt: 0,
        },
        quoted: Serial::default(),
        descriptor: ReduceDescriptor {
            count: lent.len() as u64 / 4,
            data_type: DataType::U32,
            op: ReduceOp::Sum,
            quantization: None,
            algorithm: None,
        },
        group: group.clone(),
        own: member.id,
    };
    member.thread.start_reduce(start, lent);
}

fn contribution(id: u64, count: u32) -> Vec<u8> {
    let value = |i: u32| i.wrapping_mul(id as u32 * 7 + 1);
    (0..count).flat_map(|i| value(i).to_le_bytes()).collect()
}

fn sum(ids: &[u64], count: u32) -> Vec<u8> {
    let value = |i: u32| {
        ids.iter().fold(0u32, |sum, id| {
            sum.wrapping_add(i.wrapping_mul(*id as u32 * 7 + 1))
        })
    };
    (0..count).flat_map(|i| value(i).to_le_bytes()).collect()
}

#[test]
fn three_members_reduce_over_lanes_that_split_and_delay() {
    let mut members = [member(1), member(2), member(3)];
    let view = group(&members.each_ref().map(|m| m.id));
    let mut relays = Vec::new();
    for i in 0..3 {
        let (listener, address) = listener();
        let relay = Relay::start(address).unwrap();
        relay.set(Rules {
            delay: Duration::from_millis(2),
            pieces: Some(5000),
            ..Rules::default()
        });
        for _ in 0..2 {
            let [a, b] = members.get_disjoint_mut([i, (i + 1) % 3]).unwrap();
            connect(a, b, relay.address(), &listener);
        }
        relays.push(relay);
    }
    let sizes = [0u32, 1, 5, 50_000];
    let mut buffers = Vec::new();
    for member in &members {
        let engine_group = EngineGroup {
            view: view.clone(),
            shown: view.epoch,
        };
        member.thread.set_group(engine_group);
        for (tag, size) in sizes.iter().enumerate() {
            let mut own = match tag % 2 {
                0 => OwnedBuffers::new(contribution(member.id.0, *size)),
                _ => OwnedBuffers::in_place(contribution(member.id.0, *size)),
            };
            start(member, &view, tag as u64, &mut own);
            buffers.push(own);
        }
    }
    for tag in 0..sizes.len() as u64 {
        let digests = members.each_mut().map(|m| m.done(tag));
        assert_eq!(digests, [digests[0]; 3]);
        for member in &mut members {
            assert_eq!(member.finish(tag, true).world, 3);
        }
    }
    for (i, buffers) in buffers.iter().enumerate() {
        assert!(
            buffers.recv() == sum(&[1, 2, 3], sizes[i % sizes.len()]),
            "{i}"
        );
    }
    for member in &mut members {
        let mut heard = member.wait(|event| match event {
            DataEvent::Heard(who) => Some(who.clone()),
            _ => None,
        });
        heard.retain(|who| *who == member.id);
        assert!(heard.is_empty());
    }
}

#[test]
fn a_lane_that_dies_fails_what_is_on_it_and_buffers_are_restored() {
    let (mut a, mut b) = (member(1), member(2));
    let view = group(&[a.id, b.id]);
    let (listener, address) = listener();
    let relay = Relay::start(address).unwrap();
    relay.set(Rules {
        rate: Some(2_000_000),
        ..Rules::default()
    });
    connect(&mut a, &mut b, relay.address(), &listener);
    let count = 1_000_000;
    let mut buffers = [1, 2].map(|id| OwnedBuffers::in_place(contribution(id, count)));
    start(&a, &view, 1, &mut buffers[0]);
    start(&b, &view, 1, &mut buffers[1]);
    while relay.passed() < 1_000_000 {
        std::thread::yield_now();
    }
    relay.reset();
    for member in [&mut a, &mut b] {
        let (lane, orderly, cause) = member.closed();
        assert_eq!((lane, orderly), (LaneId(1), false));
        let told = member.wait(|event| match event {
            DataEvent::Engine(EngineEvent::Failed {
                cause: RequestCause::LaneDied { cause, .. },
                ..
            }) => Some(cause.clone()),
            _ => None,
        });
        assert_eq!(told, cause);
        assert!(member.finish(1, false).tx_bytes > 0);
    }
    for (id, buffers) in [1, 2].into_iter().zip(&buffers) {
        assert!(buffers.recv() == contribution(id, count));
    }
}

#[test]
fn buffers_are_restored_when_the_owner_ends_without_a_word_about_them() {
    let (mut a, mut b) = (member(1), member(2));
    let view = group(&[a.id, b.id]);
    let (listener, address) = listener();
    connect(&mut a, &mut b, address, &listener);
    let count = 10_000;
    let mut buffers = [1, 2].map(|id| OwnedBuffers::in_place(contribution(id, count)));
    start(&a, &view, 1, &mut buffers[0]);
    start(&b, &view, 1, &mut buffers[1]);
    assert_eq!(a.done(1), b.done(1));
    drop((a.thread, b.thread));
    for (id, buffers) in [1, 2].into_iter().zip(&buffers) {
        assert!(buffers.recv() == contribution(id, count));
    }
}

#[test]
fn a_lane_closed_in_good_order_is_orderly_at_both_ends() {
    let (mut a, mut b) = (member(1), member(2));
    let (listener, address) = listener();
    connect(&mut a, &mut b, address, &listener);
    a.thread.close_lane(LaneId(1));
    assert!(b.closed().1);
    assert!(a.closed().1);
}

#[test]
fn what_is_no_frame_closes_the_lane_and_says_why() {
    use std::io::{Read, Write};

    let mut a = member(1);
    let (listener, address) = listener();
    let mut stranger = TcpStream::connect(address).unwrap();
    a.lane(MemberId(2), listener.accept().unwrap().0);
    stranger.write_all(&[0xEE; 100]).unwrap();
    let (_, orderly, cause) = a.closed();
    assert!(!orderly && !cause.is_empty());
    let mut rest = Vec::new();
    let _ = stranger.read_to_end(&mut rest);

    let mut silent = TcpStream::connect(address).unwrap();
    a.lane(MemberId(2), listener.accept().unwrap().0);
    silent.write_all(&[0; 10]).unwrap();
    drop(silent);
    assert!(!a.closed().1);
}

#[test]
fn the_thread_ends_with_its_owner_and_lets_go_of_all_buffers() {
    let a = member(1);
    let view = group(&[a.id, MemberId(2)]);
    let mut buffers = OwnedBuffers::in_place(contribution(1, 1000));
    start(&a, &view, 1, &mut buffers);
    a.thread.finish(CallId(1), false);
    let mut unfinished = OwnedBuffers::new(contribution(1, 10));
    start(&a, &view, 2, &mut unfinished);
    let Member {
        thread, mut events, ..
    } = a;
    drop(thread);
    assert!(buffers.recv() == contribution(1, 1000));
    assert_eq!(unfinished.send(), contribution(1, 10));
    let _ = unfinished.recv();
    let mut finished = 0;
    while let Ok(event) = events.try_recv() {
        finished += usize::from(matches!(
            event,
            DataEvent::Finished {
                call: CallId(1),
                ..
            }
        ));
    }
    assert_eq!(finished, 1);
    assert!(events.blocking_recv().is_none());
}
