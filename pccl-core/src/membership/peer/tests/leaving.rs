//! Leaving, being evicted, the master's stop.

use super::*;
use crate::error::UsageError;
use crate::wire::reason::EvictReason;

const RING: [u64; 2] = [5, 7];

fn closed() -> Error {
    UsageError::Closed.into()
}

#[test]
fn leaving_waits_for_the_goodbye_and_closes_lanes_after_it() {
    let mut rig = Rig::member(7, &RING);
    let lane = rig.lane_open(5, true, 1).0;
    let (call, outputs) = rig.call(Request::Leave);
    assert_eq!(outputs, [PeerOutput::Send(Up::Leave)]);
    assert!(!rig.peer.is_member());
    let outputs = rig.message(Down::Goodbye);
    let expected = [
        PeerOutput::CloseMaster,
        PeerOutput::Admit {
            own: None,
            peers: Vec::new(),
            readers: Vec::new(),
            keys: Vec::new(),
        },
        PeerOutput::CloseLane { lane },
        PeerOutput::Group {
            group: GroupView::default(),
            shown: Epoch(0),
        },
        complete(call, Ok(Answer::Done(alone()))),
    ];
    assert_eq!(outputs, expected);
    assert_eq!(rig.peer.next_deadline(), None);
    for request in [Request::Connect, Request::Leave] {
        let (call, outputs) = rig.call(request);
        assert_eq!(outputs, [complete(call, Err(closed()))]);
    }
}

#[test]
fn leaving_cancels_open_calls_which_still_get_their_verdicts() {
    let mut rig = Rig::member(7, &RING);
    rig.reduce(1);
    let (late, _) = rig.reduce(2);
    let (query, _) = rig.vote(UnanimousCall::ArePeersPending);
    let (leave, outputs) = rig.call(Request::Leave);
    let told = sent(&outputs);
    assert!(matches!(told[..], [
        Up::AbortRequest(first),
        Up::AbortRequest(_),
        Up::Withdraw { cause: RequestCause::Destroyed, .. },
        Up::Leave
    ] if first.cause == RequestCause::Destroyed));
    let abort = Outcome::Abort(gave_up(7));
    let outputs = rig.message(verdict(name(1, 0), 6, abort, stamp(1, 1, &RING)));
    assert!(matches!(
        outputs[..],
        [PeerOutput::Finish { outcome: Ok(_), .. }]
    ));
    let (call, outputs) = rig.reduce(3);
    assert_eq!(outputs, [complete(call, Err(closed()))]);
    // What has no verdict by then fails.
    let outputs = rig.message(Down::Goodbye);
    assert!(outputs.contains(&PeerOutput::Finish {
        call: late,
        op: name(2, 0),
        quoted: serial(0),
        outcome: Err(closed()),
        stamp: alone(),
    }));
    assert!(outputs.contains(&complete(query, Err(closed()))));
    assert_eq!(
        outputs.last(),
        Some(&complete(leave, Ok(Answer::Done(alone()))))
    );
}

#[test]
fn leaving_never_waits_for_a_master_that_is_away_or_silent() {
    let mut rig = Rig::member(7, &RING);
    let (call, _) = rig.call(Request::Leave);
    let outputs = rig.pass(HEARTBEAT * 2);
    assert_eq!(
        outputs.last(),
        Some(&complete(call, Ok(Answer::Done(alone()))))
    );

    let mut rig = Rig::member(7, &RING);
    let (call, _) = rig.call(Request::Leave);
    let outputs = rig.broken();
    assert_eq!(
        outputs.last(),
        Some(&complete(call, Ok(Answer::Done(alone()))))
    );

    let mut rig = Rig::member(7, &RING);
    rig.broken();
    let (op, _) = rig.reduce(1);
    let (call, outputs) = rig.call(Request::Leave);
    assert!(outputs.iter().any(|output| matches!(output,
        PeerOutput::Finish { call, outcome: Err(_), .. } if *call == op)));
    assert_eq!(
        outputs.last(),
        Some(&complete(call, Ok(Answer::Done(alone()))))
    );
}

#[test]
fn leaving_without_a_membership_returns_at_once() {
    let mut rig = Rig::new();
    let (call, outputs) = rig.call(Request::Leave);
    assert_eq!(outputs, [complete(call, Ok(Answer::Done(alone())))]);
    let (call, outputs) = rig.call(Request::Connect);
    assert_eq!(outputs, [complete(call, Err(closed()))]);

    let (mut rig, connect) = Rig::newcomer(7);
    let (call, outputs) = rig.call(Request::Leave);
    let failed = complete(connect, Err(Error::NotAdmitted(RequestCause::Destroyed)));
    assert_eq!(outputs[0], PeerOutput::Send(Up::Leave));
    assert!(outputs.contains(&failed));
    assert_eq!(
        outputs.last(),
        Some(&complete(call, Ok(Answer::Done(alone()))))
    );
}

#[test]
fn eviction_and_the_stop_of_the_master_fail_all_calls_at_once() {
    let address = ADDRESS.into();
    let reason = EvictReason::Operator;
    for (message, error) in [
        (Down::Stopping, Error::MasterStopped { address }),
        (Down::Evicted(reason.clone()), Error::Evicted(reason)),
    ] {
        let mut rig = Rig::member(7, &RING);
        let lane = rig.lane_open(5, true, 1).0;
        let (second, _) = rig.reduce(2);
        let (first, _) = rig.reduce(1);
        let (query, _) = rig.vote(UnanimousCall::ArePeersPending);
        let outputs = rig.message(message);
        let finish = |call, tag| PeerOutput::Finish {
            call,
            op: name(tag, 0),
            quoted: serial(0),
            outcome: Err(error.clone()),
            stamp: alone(),
        };
        let expected = [
            PeerOutput::CloseMaster,
            PeerOutput::Admit {
                own: None,
                peers: Vec::new(),
                readers: Vec::new(),
                keys: Vec::new(),
            },
            finish(second, 2),
            finish(first, 1),
            PeerOutput::CloseLane { lane },
            PeerOutput::Group {
                group: GroupView::default(),
                shown: Epoch(0),
            },
            complete(query, Err(error.clone())),
        ];
        assert_eq!(outputs, expected);
        assert_eq!(rig.peer.attributes(), Attributes::ALONE);
    }
}
