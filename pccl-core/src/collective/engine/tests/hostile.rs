//! A peer that sends whatever it likes: no panic, no harm to what it may not touch, and a reason.

use proptest::prelude::*;

use super::harness::{config, feed, frame, member, name};
use crate::collective::buffers::OwnedBuffers;
use crate::collective::engine::{Engine, EngineConfig, EngineEvent, StartReduce};
use crate::ids::{CallId, Epoch, LaneId, Serial, Time, Token};
use crate::types::{
    Algorithm, Choice, DataType, Quantization, QuantizationAlgorithm, QuantizedType,
    ReduceDescriptor, ReduceOp,
};
use crate::wire::control::{GroupView, MemberInfo};
use crate::wire::lane::{DataHeader, FrameKind, OpenFrame};
use crate::wire::reason::RequestCause;

const LANE: LaneId = LaneId(1);
const SUM: ReduceDescriptor = ReduceDescriptor {
    count: 30,
    data_type: DataType::F32,
    op: ReduceOp::Sum,
    quantization: None,
    algorithm: None,
};

const QUANTIZED: ReduceDescriptor = ReduceDescriptor {
    count: 1_800,
    quantization: Some(Quantization {
        algorithm: QuantizationAlgorithm::MinMax,
        to: QuantizedType::U8,
    }),
    ..SUM
};

/// An engine at rank 0 of three with one operation open (serial 1), and a lane from the previous
/// rank.
struct Victim {
    engine: Engine,
    buffers: OwnedBuffers,
}

impl Victim {
    fn new(descriptor: ReduceDescriptor) -> Self {
        Self::lent(descriptor, EngineConfig::default().scratch)
    }

    /// One that has so much room to lend.
    fn lent(descriptor: ReduceDescriptor, scratch: u64) -> Self {
        let config = EngineConfig {
            scratch,
            ..config(64)
        };
        let mut engine = Engine::new(config, Time(0));
        engine.lane_open(LANE, member(2), Time(0));
        engine.lane_open(LaneId(2), member(1), Time(0));
        let ring = (0..3).map(|i| MemberInfo {
            id: member(i),
            name: String::new(),
            addresses: Vec::new(),
            token: Token(0),
            key: None,
        });
        let bytes = descriptor.bytes().unwrap() as usize;
        let mut buffers = OwnedBuffers::in_place((0..bytes).map(|i| i as u8).collect());
        let start = StartReduce {
            call: CallId(1),
            op: name(1),
            quoted: Serial::default(),
            descriptor,
            group: GroupView {
                epoch: Epoch(1),
                ring: ring.collect(),
                choice: Choice {
                    direct: true,
                    hub: Some(member(0)),
                    ..Choice::RING
                },
            },
            own: member(0),
        };
        engine.start(start, buffers.lend(), Time(0));
        Self { engine, buffers }
    }

    fn feed(&mut self, bytes: &[u8]) {
        feed(&mut self.engine, LANE, bytes, Time(0));
    }

    fn bad_frame(&mut self) -> Option<String> {
        while let Some(event) = self.engine.poll_event() {
            if let EngineEvent::Failed {
                cause: RequestCause::BadFrame { peer, what },
                ..
            } = event
            {
                assert_eq!(peer, member(2));
                return Some(what);
            }
        }
        None
    }

    fn fault(&mut self) -> Option<String> {
        while let Some(event) = self.engine.poll_event() {
            if let EngineEvent::LaneFault { lane, what, .. } = event {
                assert_eq!(lane, LANE);
                return Some(what);
            }
        }
        None
    }

    fn gives_back(mut self) -> bool {
        self.engine.finish(CallId(1), false);
        let bytes = self.buffers.recv();
        bytes.iter().enumerate().all(|(i, b)| *b == i as u8)
    }
}

/// The same operation by another algorithm.
fn by(algorithm: Algorithm, descriptor: ReduceDescriptor) -> ReduceDescriptor {
    ReduceDescriptor {
        algorithm: Some(algorithm),
        ..descriptor
    }
}

/// Slice 2 of 30 elements starts at the previous rank; it has elements 20 to 30.
fn partial(offset: u64) -> DataHeader {
    DataHeader {
        kind: FrameKind::Partial,
        length: 0,
        from: 9,
        to: 1,
        offset,
        slice: 2,
        crc: 0,
    }
}

#[test]
fn frames_that_do_not_fit_fail_the_operation_and_name_the_sender() {
    let result = DataHeader {
        kind: FrameKind::Result,
        ..partial(80)
    };
    let cases: [(&str, Vec<Vec<u8>>); 9] = [
        (
            "overlaps",
            vec![frame(partial(80), &[0; 8]), frame(partial(84), &[0; 8])],
        ),
        (
            "overlaps",
            vec![frame(partial(80), &[0; 8]), frame(partial(80), &[0; 8])],
        ),
        ("outside", vec![frame(partial(116), &[0; 8])]),
        ("cuts", vec![frame(partial(82), &[0; 8])]),
        ("cuts", vec![frame(partial(80), &[0; 6])]),
        ("cuts", vec![frame(partial(80), &[])]),
        ("overflow", vec![frame(partial(u64::MAX - 3), &[0; 8])]),
        (
            "starts here",
            vec![frame(
                DataHeader {
                    slice: 0,
                    ..partial(0)
                },
                &[0; 8],
            )],
        ),
        ("not left", vec![frame(result, &[0; 8])]),
    ];
    for (expected, frames) in cases {
        let mut victim = Victim::new(SUM);
        for bytes in frames {
            victim.feed(&bytes);
        }
        let what = victim
            .bad_frame()
            .unwrap_or_else(|| panic!("no failure: {expected}"));
        assert!(what.contains(expected), "{what} instead of {expected}");
        // The lane goes on.
        victim.feed(&frame(
            DataHeader {
                to: 77,
                ..partial(80)
            },
            &[1; 8],
        ));
        assert_eq!(victim.fault(), None);
        assert!(victim.gives_back());
    }
}

#[test]
fn slices_that_there_are_not_and_wrong_neighbours_are_refused() {
    let mut victim = Victim::new(SUM);
    victim.feed(&frame(
        DataHeader {
            slice: 3,
            ..partial(0)
        },
        &[0; 8],
    ));
    assert!(victim.bad_frame().unwrap().contains("no such slice"));
    let mut victim = Victim::new(SUM);
    feed(
        &mut victim.engine,
        LaneId(2),
        &frame(partial(80), &[0; 8]),
        Time(0),
    );
    let event = victim.engine.poll_event();
    assert!(matches!(
        event,
        Some(EngineEvent::Failed { cause: RequestCause::BadFrame { peer, .. }, .. })
            if peer == member(1)
    ));
}

#[test]
fn more_than_the_granted_room_is_refused() {
    let wide = ReduceDescriptor {
        count: 300_000,
        data_type: DataType::F16,
        op: ReduceOp::Sum,
        quantization: None,
        algorithm: None,
    };
    let mut victim = Victim::new(wide);
    victim.engine.lending = super::super::window::Lending::new(0);
    // Slice 2 has elements 200,000 to 300,000; the engine lends all its scratch to one operation.
    victim.feed(&frame(partial(200_000 * 4), &[0; 64]));
    assert_eq!(victim.bad_frame(), None);
    for op in victim.engine.ops.values_mut() {
        for slice in &mut op.slices {
            if let Some(room) = &mut slice.room {
                assert!(room.granted() < slice.span.end);
            }
        }
    }
    victim.feed(&frame(partial(300_000 * 4 - 64), &[0; 64]));
    assert!(victim.bad_frame().unwrap().contains("granted"));
}

#[test]
fn quantised_frames_that_do_not_fit_fail_the_operation_and_name_the_sender() {
    let result = DataHeader {
        kind: FrameKind::Result,
        ..partial(0)
    };
    // Slice 2 has two blocks of 256 elements, 264 bytes each, and one of 88.
    let block = |from: u64| frame(partial(from), &[0; 264]);
    let cases: [(&str, Vec<Vec<u8>>); 8] = [
        ("cuts elements", vec![block(8)]),
        ("cuts elements", vec![frame(partial(0), &[0; 8])]),
        ("cuts blocks", vec![block(18)]),
        ("cuts blocks", vec![frame(partial(0), &[0; 18])]),
        ("outside", vec![block(2 * 264)]),
        ("overlaps", vec![block(0), frame(partial(0), &[0; 528])]),
        (
            "impossible parameters",
            vec![frame(partial(0), &[255; 264])],
        ),
        ("has not left", vec![frame(result, &[0; 264])]),
    ];
    for (why, frames) in cases {
        let mut victim = Victim::new(QUANTIZED);
        for bytes in frames {
            victim.feed(&bytes);
        }
        let what = victim.bad_frame().unwrap();
        assert!(what.contains(why), "{what:?} does not say {why:?}");
        assert!(victim.gives_back());
    }
    let mut victim = Victim::new(QUANTIZED);
    victim.feed(&[block(264), frame(partial(2 * 264), &[0; 96]), block(0)].concat());
    assert_eq!(victim.bad_frame(), None);
}

#[test]
fn what_is_no_frame_closes_the_lane() {
    let mut wrong = frame(partial(80), &[0; 8]);
    *wrong.last_mut().unwrap() ^= 1;
    let open = DataHeader {
        kind: FrameKind::Open,
        to: 0,
        ..partial(0)
    };
    let credit = DataHeader {
        kind: FrameKind::Credit,
        ..partial(1)
    };
    let early = DataHeader {
        to: 0,
        ..partial(0)
    };
    let too_early = (0..20)
        .map(|_| frame(early, &[0; 4096]))
        .collect::<Vec<_>>()
        .concat();
    let result = DataHeader {
        kind: FrameKind::Result,
        ..early
    };
    let cases: [(&str, Vec<u8>); 7] = [
        ("checksum", wrong),
        ("header does not match", vec![0; 48]),
        ("Open frame", frame(open, &[255; 20])),
        ("serial", {
            let mut payload = Vec::new();
            open_frame(Algorithm::Ring).encode(&mut payload).unwrap();
            frame(DataHeader { from: 0, ..open }, &payload)
        }),
        ("credit", frame(credit, &[])),
        ("standing credit", too_early),
        ("not opened", frame(result, &[0; 8])),
    ];
    for (expected, bytes) in cases {
        let mut victim = Victim::new(SUM);
        if expected == "standing credit" {
            // Somebody who never calls what was opened.
            let mut payload = Vec::new();
            let mut open_frame = open_frame(Algorithm::Ring);
            open_frame.op.key.tag.0 = 5;
            open_frame.encode(&mut payload).unwrap();
            victim.feed(&frame(open, &payload));
        }
        victim.feed(&bytes);
        let what = victim
            .fault()
            .unwrap_or_else(|| panic!("no fault: {expected}"));
        assert!(what.contains(expected), "{what} instead of {expected}");
        assert!(victim.engine.sink(LANE).is_empty());
        assert!(victim.gives_back());
    }
}

#[test]
fn a_frame_that_was_harmed_on_the_way_is_not_blamed_on_its_content() {
    let mut victim = Victim::new(SUM);
    let mut bytes = frame(partial(80), &[0; 8]);
    // Another slice than the sender wrote.
    bytes[32] = 0;
    victim.feed(&bytes);
    let event = victim.engine.poll_event();
    assert!(
        matches!(event, Some(EngineEvent::LaneFault { .. })),
        "{event:?}"
    );
    assert_eq!(victim.bad_frame(), None);
}

#[test]
fn a_result_that_is_lost_half_way_fails_the_operation_at_its_receiver_too() {
    for (descriptor, bytes) in [(SUM, 40), (QUANTIZED, 624)] {
        let mut victim = Victim::new(descriptor);
        // The own contribution to slice 0 leaves, so that the result of it may come.
        loop {
            let [header, payload] = victim.engine.gather(LaneId(2));
            match header.len() + payload.len() {
                0 => break,
                n => victim.engine.sent(LaneId(2), n, Time(0)),
            }
        }
        let result = DataHeader {
            kind: FrameKind::Result,
            slice: 0,
            ..partial(0)
        };
        let mut harmed = frame(result, &vec![0; bytes]);
        *harmed.last_mut().unwrap() ^= 1;
        victim.feed(&harmed);
        let mut died = false;
        while let Some(event) = victim.engine.poll_event() {
            died |= matches!(
                event,
                EngineEvent::Failed { cause: RequestCause::LaneDied { peer, .. }, .. }
                    if peer == member(2)
            );
        }
        assert!(died, "{descriptor}");
        assert!(victim.gives_back());
    }
}

/// Direct, rank 0 owns elements 0 to 10, and the sender 20 to 30; a star's hub owns all.
#[test]
fn straight_frames_that_do_not_fit_fail_the_operation_and_name_the_sender() {
    let data = |kind, slice, offset| DataHeader {
        kind,
        slice,
        ..partial(offset)
    };
    let contribution = |slice, offset| data(FrameKind::Partial, slice, offset);
    let result = |slice, offset| data(FrameKind::Result, slice, offset);
    let grant = DataHeader {
        kind: FrameKind::Grant,
        slice: 0,
        ..partial(1_000)
    };
    for (algorithm, header, length, why) in [
        (Algorithm::Direct, contribution(2, 80), 8, "no such slice"),
        (Algorithm::Direct, contribution(3, 80), 8, "no such slice"),
        (
            Algorithm::Direct,
            contribution(0, 36),
            8,
            "outside the slice",
        ),
        (Algorithm::Direct, contribution(0, 2), 8, "cuts elements"),
        (Algorithm::Direct, contribution(0, 0), 6, "cuts elements"),
        (Algorithm::Direct, result(0, 0), 8, "no such slice"),
        (Algorithm::Direct, result(2, 80), 8, "not left yet"),
        (Algorithm::Direct, grant, 0, "does not come"),
        (Algorithm::Star, contribution(1, 0), 8, "no such slice"),
        (
            Algorithm::Star,
            contribution(0, 116),
            8,
            "outside the slice",
        ),
        (Algorithm::Star, result(0, 0), 8, "no such slice"),
        (Algorithm::Star, grant, 0, "does not come"),
    ] {
        let mut victim = Victim::new(by(algorithm, SUM));
        victim.feed(&frame(header, &vec![1; length]));
        let what = victim.bad_frame();
        assert!(
            what.as_ref().is_some_and(|what| what.contains(why)),
            "{algorithm}: {header:?}: {what:?} instead of {why}"
        );
        assert!(victim.gives_back());
    }
    // The same contribution twice, the second time in part.
    let mut victim = Victim::new(by(Algorithm::Star, SUM));
    victim.feed(&frame(contribution(0, 8), &[1; 16]));
    assert_eq!(victim.bad_frame(), None);
    victim.feed(&frame(contribution(0, 16), &[1; 16]));
    assert!(
        victim
            .bad_frame()
            .is_some_and(|what| what.contains("overlaps"))
    );
    assert!(victim.gives_back());
    // More than there is room for.
    let large = ReduceDescriptor {
        count: 1 << 20,
        ..by(Algorithm::Star, SUM)
    };
    for (offset, why) in [
        ((128 << 10) - 16, None),
        (128 << 10, Some("beyond the room")),
    ] {
        let mut victim = Victim::lent(large, 0);
        victim.feed(&frame(contribution(0, offset), &[1; 16]));
        let what = victim.bad_frame();
        assert_eq!(what.is_some(), why.is_some(), "{what:?}");
        assert!(what.is_none_or(|what| why.is_some_and(|why| what.contains(why))));
        assert!(victim.gives_back());
    }
}

fn open_frame(algorithm: Algorithm) -> OpenFrame {
    OpenFrame {
        op: name(1),
        epoch: Epoch(1),
        quoted: Serial::default(),
        descriptor: ReduceDescriptor {
            algorithm: Some(algorithm),
            ..SUM
        }
        .digest(),
        grant: u64::MAX,
    }
}

fn any_frame(algorithm: Algorithm) -> impl Strategy<Value = Vec<u8>> {
    let kind = prop::sample::select(vec![
        FrameKind::Open,
        FrameKind::Partial,
        FrameKind::Partial,
        FrameKind::Result,
        FrameKind::Grant,
        FrameKind::Credit,
        FrameKind::Alive,
    ]);
    let number = prop_oneof![0u64..3, any::<u64>()];
    let offset = prop_oneof![(0u64..40).prop_map(|e| e * 4), any::<u64>()];
    let payload = prop_oneof![
        (0usize..10).prop_map(|n| vec![1; 4 * n]),
        prop::collection::vec(any::<u8>(), 0..70),
        // A slice of ten codes.
        prop::collection::vec(any::<u8>(), 18),
        (0u64..4, 0u64..3).prop_map(move |(tag, attempt)| {
            let mut frame = open_frame(algorithm);
            frame.op.key.tag.0 = tag;
            frame.op.attempt = attempt as u32;
            let mut bytes = Vec::new();
            frame.encode(&mut bytes).unwrap();
            bytes
        }),
    ];
    (kind, number.clone(), number, offset, 0u32..4, payload).prop_map(
        |(kind, from, to, offset, slice, mut payload)| {
            payload.truncate(kind.payload_limit() as usize);
            let header = DataHeader {
                kind,
                length: 0,
                from,
                to,
                offset,
                slice,
                crc: 0,
            };
            frame(header, &payload)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut victim = Victim::new(SUM);
        victim.feed(&bytes);
        prop_assert!(victim.gives_back());
    }

    #[test]
    fn frames_in_any_order_never_panic_and_never_harm(
        (algorithm, frames) in prop::sample::select(&Algorithm::ALL[..]).prop_flat_map(|algorithm| {
            (Just(algorithm), prop::collection::vec(any_frame(algorithm), 0..40))
        }),
        form in 0..3,
    ) {
        let data_type = if form == 1 { DataType::F16 } else { DataType::F32 };
        let quantization = if form == 2 { QUANTIZED.quantization } else { None };
        let descriptor = ReduceDescriptor { data_type, quantization, ..by(algorithm, SUM) };
        let mut victim = Victim::new(descriptor);
        for bytes in frames {
            victim.feed(&bytes);
            for lane in [LANE, LaneId(2)] {
                for _ in 0..3 {
                    let [header, payload] = victim.engine.gather(lane);
                    let n = header.len() + payload.len();
                    victim.engine.sent(lane, n, Time(0));
                }
            }
        }
        prop_assert!(victim.gives_back());
    }
}
