//! The loop of the data thread.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use tokio::sync::mpsc::UnboundedSender;

use super::lane::{self, Turn};
use super::secured;
use super::{Command, DataEvent, WAKE};
use crate::collective::engine::{Engine, EngineConfig, EngineEvent};
use crate::ids::{LaneId, MemberId, Time};
use crate::runtime::clock::Clock;
use crate::transport::secure::Session;
use crate::trap::{self, Trap};

/// Runs until it is told to end, or its owner is gone.
pub(super) fn run(
    poll: Poll,
    config: EngineConfig,
    commands: Receiver<Command>,
    says: UnboundedSender<DataEvent>,
) {
    let clock = Clock::start();
    let mut driver = Driver {
        engine: Engine::new(config, clock.now()),
        lanes: BTreeMap::new(),
        heard: Heard {
            members: BTreeSet::new(),
            interval: config.timing.heartbeat,
            next: Time::default(),
        },
        clock,
        poll,
        commands,
        commands_left: false,
        says,
    };
    let ended = catch_unwind(AssertUnwindSafe(|| driver.run()));
    // For calls that nobody has ended: this thread, or its owner, may have panicked.
    driver.engine.restore_all();
    if let Err(panic) = ended {
        // Told to the owner by the end of the events, now that no buffer is touched any more.
        drop(driver);
        resume_unwind(panic);
    }
}

/// The engine, and with it all buffers on loan, goes before the channel by which others learn that
/// this thread is gone.
struct Driver {
    engine: Engine,
    lanes: BTreeMap<LaneId, Lane>,
    heard: Heard,
    clock: Clock,
    poll: Poll,
    commands: Receiver<Command>,
    /// Whether commands may be waiting that no wake-up will tell of.
    commands_left: bool,
    says: UnboundedSender<DataEvent>,
}

struct Lane {
    stream: TcpStream,
    /// TLS, in a run with tickets.
    session: Option<Box<Session>>,
    /// Whether the socket may have bytes.
    readable: bool,
    /// Whether the socket may take bytes.
    writable: bool,
    /// Whether the engine may have bytes for it.
    wanted: bool,
    /// Whether the engine did not want its bytes when last asked.
    paused: bool,
    /// After the goodbye: when the other end must have closed too.
    until: Option<Time>,
    /// Whether the goodbye has been said, and nothing more is to be.
    last: bool,
    /// What the socket said to the last write: what came before may still be read.
    broken: Option<String>,
}

/// Members that data came from, told once per heartbeat interval at most. (Rule 14)
struct Heard {
    members: BTreeSet<MemberId>,
    interval: Duration,
    next: Time,
}

impl Driver {
    fn run(&mut self) {
        let mut events = Events::with_capacity(EVENTS);
        loop {
            trap::pass(Trap::Data);
            let timeout = self.timeout();
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => {
                    tracing::error!(target: "pccl::peer", cause = %e, "the data thread cannot poll");
                    return;
                }
            }
            for event in &events {
                if event.token() == WAKE {
                    self.commands_left = true;
                } else if let Some(lane) = self.lanes.get_mut(&LaneId(event.token().0 as u64)) {
                    lane.readable |= event.is_readable() || event.is_error();
                    lane.writable |=
                        lane.broken.is_none() && (event.is_writable() || event.is_error());
                }
            }
            if self.commands_left && self.obey() {
                return;
            }
            self.read();
            let now = self.clock.now();
            if self.engine.next_deadline().is_some_and(|t| t <= now) {
                self.engine.tick(now);
            }
            self.give_up_on_silent_ends(now);
            self.take_events(now);
            self.write();
            self.take_events(now);
            self.tell_heard(now);
            self.mark_wanted();
        }
    }

    /// How long the poll may wait: not at all while there is work that it will not tell of.
    fn timeout(&self) -> Option<Duration> {
        let busy = |l: &Lane| (l.readable && !l.paused) || (l.writable && l.wanted);
        if self.commands_left || self.lanes.values().any(busy) {
            return Some(Duration::ZERO);
        }
        let lanes = self.lanes.values().filter_map(|l| l.until);
        let deadline = lanes
            .chain(self.engine.next_deadline())
            .chain(self.heard.deadline())
            .min()?;
        // Rounded up by one: some systems cut timeouts to milliseconds, and would be asked again
        // and again until the deadline has come.
        Some(deadline.since(self.clock.now()) + POLL_GRAIN)
    }

    /// Carries commands out. Whether this thread is to end.
    fn obey(&mut self) -> bool {
        for _ in 0..COMMANDS {
            let now = self.clock.now();
            match self.commands.try_recv() {
                Err(std::sync::mpsc::TryRecvError::Empty) => {
                    self.commands_left = false;
                    break;
                }
                Err(std::sync::mpsc::TryRecvError::Disconnected) | Ok(Command::Shutdown) => {
                    return true;
                }
                Ok(Command::OpenLane { lane, peer, parts }) => {
                    let (stream, session) = parts;
                    self.open(lane, peer, TcpStream::from_std(stream), session, now);
                }
                Ok(Command::CloseLane(lane)) => self.engine.close_lane(lane),
                Ok(Command::SetGroup(group)) => self.engine.set_group(group, now),
                Ok(Command::Start(start, lent)) => self.engine.start(*start, lent, now),
                Ok(Command::Finish { call, commit }) => {
                    let stats = self.engine.finish(call, commit);
                    self.say(DataEvent::Finished { call, stats });
                }
            }
        }
        false
    }

    fn open(
        &mut self,
        id: LaneId,
        peer: MemberId,
        mut stream: TcpStream,
        session: Option<Box<Session>>,
        now: Time,
    ) {
        let token = Token(id.0 as usize);
        let both = Interest::READABLE | Interest::WRITABLE;
        if let Err(e) = self.poll.registry().register(&mut stream, token, both) {
            self.say(DataEvent::LaneClosed {
                lane: id,
                orderly: false,
                cause: e.to_string(),
            });
            return;
        }
        let lane = Lane {
            stream,
            session,
            readable: true,
            writable: true,
            wanted: true,
            paused: false,
            until: None,
            last: false,
            broken: None,
        };
        self.lanes.insert(id, lane);
        self.engine.lane_open(id, peer, now);
    }

    fn read(&mut self) {
        let mut gone = Vec::new();
        for (id, lane) in &mut self.lanes {
            if !lane.readable {
                continue;
            }
            let (stream, now) = (&mut lane.stream, self.clock.now());
            let turn = match &mut lane.session {
                None => lane::read(stream, *id, &mut self.engine, now),
                Some(session) => secured::read(stream, session, *id, &mut self.engine, now),
            };
            lane.paused = matches!(turn, Turn::Idle);
            lane.readable = !matches!(turn, Turn::Blocked);
            let cause = match turn {
                Turn::End => Some(CLOSED.to_owned()),
                Turn::Broken(e) => Some(e.to_string()),
                Turn::More => None,
                Turn::Blocked | Turn::Idle => None,
            };
            let all_read = lane.paused || !lane.readable;
            let cause = cause.or_else(|| lane.broken.take_if(|_| all_read));
            gone.extend(cause.map(|cause| (*id, cause)));
        }
        self.close_all(gone);
    }

    fn write(&mut self) {
        self.mark_wanted();
        for (id, lane) in &mut self.lanes {
            if !lane.writable || !lane.wanted {
                continue;
            }
            let (stream, now) = (&lane.stream, self.clock.now());
            let turn = match &mut lane.session {
                None => lane::write(stream, *id, &mut self.engine, now),
                Some(session) => secured::write(stream, session, *id, &mut self.engine, now),
            };
            match turn {
                Turn::More => {}
                Turn::Blocked => lane.writable = false,
                Turn::Idle | Turn::End => {
                    lane.wanted = false;
                    lane.end_if_last();
                }
                Turn::Broken(e) => {
                    // What the other end sent before it closed is still worth reading: it may be a
                    // goodbye.
                    lane.broken = Some(e.to_string());
                    lane.writable = false;
                    lane.readable = true;
                    lane.paused = false;
                }
            }
        }
    }

    fn mark_wanted(&mut self) {
        while let Some(id) = self.engine.poll_writable() {
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.wanted = true;
            }
        }
    }

    fn close_all(&mut self, gone: Vec<(LaneId, String)>) {
        for (id, cause) in gone {
            // Frames in front of the end, a goodbye among them, have had their effect first.
            let now = self.clock.now();
            self.take_events(now);
            let orderly = self.lanes.get(&id).is_some_and(|l| l.until.is_some());
            self.close(id, orderly, cause, now);
        }
    }

    fn close(&mut self, id: LaneId, orderly: bool, cause: String, now: Time) {
        let Some(mut lane) = self.lanes.remove(&id) else {
            return;
        };
        // A socket that cannot be taken out of the poll is taken out by being closed.
        let _ = self.poll.registry().deregister(&mut lane.stream);
        drop(lane);
        self.engine.lane_closed(id, orderly, &cause, now);
        self.say(DataEvent::LaneClosed {
            lane: id,
            orderly,
            cause,
        });
    }

    fn take_events(&mut self, now: Time) {
        while let Some(event) = self.engine.poll_event() {
            match event {
                EngineEvent::LaneFault { lane, what, .. } => self.close(lane, false, what, now),
                EngineEvent::LaneBye { lane } => self.close(lane, true, GOODBYE.to_owned(), now),
                EngineEvent::ByeSent { lane } => {
                    // A socket closed with unread input would tell the other end to drop the
                    // goodbye: say that nothing more comes, and wait for the other end to close.
                    if let Some(state) = self.lanes.get_mut(&lane) {
                        state.last = true;
                        state.until = Some(now + LINGER);
                        // What is encrypted may still wait for the socket.
                        if state
                            .session
                            .as_ref()
                            .is_none_or(|s| s.pending().is_empty())
                        {
                            state.end_if_last();
                        }
                    }
                }
                other => self.say(DataEvent::Engine(other)),
            }
        }
    }

    fn give_up_on_silent_ends(&mut self, now: Time) {
        let due = |l: &Lane| l.until.is_some_and(|t| t <= now);
        let late: Vec<_> = self
            .lanes
            .iter()
            .filter(|(_, l)| due(l))
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            self.close(id, true, GOODBYE.to_owned(), now);
        }
    }

    fn tell_heard(&mut self, now: Time) {
        self.heard.members.extend(self.engine.heard());
        if let Some(members) = self.heard.take(now) {
            self.say(DataEvent::Heard(members));
        }
    }

    fn say(&self, event: DataEvent) {
        // An owner that is gone is about to end this thread.
        let _ = self.says.send(event);
    }
}

impl Lane {
    fn end_if_last(&mut self) {
        if self.last {
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }
}

impl Heard {
    fn deadline(&self) -> Option<Time> {
        (!self.members.is_empty()).then_some(self.next)
    }

    fn take(&mut self, now: Time) -> Option<Vec<MemberId>> {
        if self.members.is_empty() || now < self.next {
            return None;
        }
        self.next = now + self.interval;
        Some(std::mem::take(&mut self.members).into_iter().collect())
    }
}

/// What a lane that ended without a goodbye said.
const CLOSED: &str = "the other end closed the connection";

/// What a lane that ended with a goodbye said.
const GOODBYE: &str = "closed in good order";

/// Sockets of which one poll tells; those left over are told by the next.
const EVENTS: usize = 256;

/// Commands between two looks at the sockets.
const COMMANDS: usize = 256;

/// How long the other end may take to close its side after a goodbye.
const LINGER: Duration = Duration::from_secs(1);

/// The coarsest unit of a poll's timeout on the systems there are.
const POLL_GRAIN: Duration = Duration::from_millis(1);
