//! A bare all-reduce around a ring.
//!
//! A tensor is cut into one slice per process. Each sends its own slice to the next, adds what it
//! receives to its own contribution, and passes that on at once, piece by piece; after `n - 1`
//! slices those that arrive are sums already, and are passed on as they are. So both directions of
//! a process are one stream each, of `2 (n - 1)` slices, and what may be sent is what has been
//! received one slice before. One thread sends and receives as much as the sockets take, and sleeps
//! if neither takes anything.

use std::cmp::Ordering;
use std::io::{self, Error, ErrorKind, Read, Write};
use std::ops::Range;
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

/// One process of the ring, connected to the one before it and to the next.
pub(super) struct Ring {
    place: usize,
    members: usize,
    before: TcpStream,
    next: TcpStream,
    poll: Poll,
    events: Events,
    /// Where partial sums arrive.
    scratch: Vec<f32>,
}

impl Ring {
    pub(super) fn new(
        place: u32,
        members: u32,
        mut before: TcpStream,
        mut next: TcpStream,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let registry = poll.registry();
        registry.register(&mut before, Token(0), Interest::READABLE)?;
        registry.register(&mut next, Token(1), Interest::WRITABLE)?;
        Ok(Self {
            place: place as usize,
            members: members.max(1) as usize,
            before,
            next,
            poll,
            events: Events::with_capacity(4),
            scratch: vec![0.0; SCRATCH],
        })
    }

    /// Sums up `own`, or what is in `result`, over all processes into `result`. Bytes sent.
    pub(super) fn all_reduce(
        &mut self,
        own: Option<&[f32]>,
        result: &mut [f32],
    ) -> io::Result<u64> {
        let steps = 2 * (self.members - 1);
        let mut sending = Cursor::new(self.place, self.members, result.len());
        let mut receiving = Cursor::new(self.place + self.members - 1, self.members, result.len());
        // Bytes of a number that has not all arrived yet.
        let mut part = 0;
        let mut sent = 0;
        sending.skip_empty();
        receiving.skip_empty();
        while sending.step < steps || receiving.step < steps {
            let mut moved = false;
            let ready = sending.ready(&receiving);
            if !ready.is_empty() {
                let from = match own {
                    Some(own) if sending.step == 0 => own,
                    _ => &*result,
                };
                let bytes = bytemuck::cast_slice::<f32, u8>(from)
                    .get(ready)
                    .unwrap_or(&[]);
                if let Some(count) = taken(self.next.write(bytes))? {
                    sent += count as u64;
                    sending.advance(count);
                    moved = true;
                }
            }
            if receiving.step < steps {
                let wanted = receiving.rest();
                let adds = receiving.step + 1 < self.members;
                let count = if adds {
                    let room = bytemuck::cast_slice_mut::<f32, u8>(&mut self.scratch);
                    let most = room.len().min(wanted.len());
                    let room = room.get_mut(part..most).unwrap_or_default();
                    taken(self.before.read(room))?
                } else {
                    let room = bytemuck::cast_slice_mut::<f32, u8>(result);
                    taken(
                        self.before
                            .read(room.get_mut(wanted.clone()).unwrap_or_default()),
                    )?
                };
                if let Some(count) = count {
                    moved = true;
                    let whole = if adds {
                        let whole = (part + count) / 4 * 4;
                        add(
                            own,
                            result,
                            wanted.start / 4,
                            self.scratch.get(..whole / 4).unwrap_or(&[]),
                        );
                        part = part + count - whole;
                        let bytes = bytemuck::cast_slice_mut::<f32, u8>(&mut self.scratch);
                        bytes.copy_within(whole..whole + part, 0);
                        whole
                    } else {
                        count
                    };
                    receiving.advance(whole);
                }
            }
            if !moved {
                self.sleep()?;
            }
        }
        Ok(sent)
    }

    fn sleep(&mut self) -> io::Result<()> {
        loop {
            match self.poll.poll(&mut self.events, Some(LONGEST)) {
                Ok(()) if self.events.is_empty() => return Err(ErrorKind::TimedOut.into()),
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

/// How far one direction of a process is: in which slice of the stream, and where in it.
#[derive(Clone, Debug)]
struct Cursor {
    /// Slices that are through.
    step: usize,
    /// Bytes of the present one that are.
    done: usize,
    first: usize,
    members: usize,
    count: usize,
}

impl Cursor {
    fn new(first: usize, members: usize, count: usize) -> Self {
        Self {
            step: 0,
            done: 0,
            first,
            members,
            count,
        }
    }

    /// Bytes of the present slice that are not through.
    fn rest(&self) -> Range<usize> {
        // Slices go by backwards: the next one's partial sum is begun by the process before.
        let slice = (self.first + 2 * self.members - self.step) % self.members;
        let begin = |slice: usize| slice * self.count / self.members * 4;
        begin(slice) + self.done..begin(slice + 1)
    }

    /// What may be sent of the present slice: all if it is one's own, and else what has arrived.
    fn ready(&self, receiving: &Self) -> Range<usize> {
        let rest = self.rest();
        if self.step >= 2 * (self.members - 1) {
            return rest.start..rest.start;
        }
        let end = match (receiving.step + 1).cmp(&self.step) {
            Ordering::Greater => rest.end,
            Ordering::Equal => receiving.rest().start,
            Ordering::Less => rest.start,
        };
        rest.start..end.max(rest.start)
    }

    fn advance(&mut self, bytes: usize) {
        self.done += bytes;
        self.skip_empty();
    }

    fn skip_empty(&mut self) {
        while self.rest().is_empty() && self.step < 2 * (self.members - 1) {
            self.step += 1;
            self.done = 0;
        }
    }
}

/// Adds what has arrived to one's own numbers from `at` on.
fn add(own: Option<&[f32]>, result: &mut [f32], at: usize, arrived: &[f32]) {
    let result = result.get_mut(at..at + arrived.len()).unwrap_or_default();
    match own.and_then(|own| own.get(at..at + arrived.len())) {
        None => result.iter_mut().zip(arrived).for_each(|(r, a)| *r += a),
        Some(own) => {
            let both = own.iter().zip(arrived);
            result
                .iter_mut()
                .zip(both)
                .for_each(|(r, (o, a))| *r = o + a);
        }
    }
}

/// How much a socket has taken or given; none if it would have to wait.
fn taken(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(0) => Err(Error::from(ErrorKind::UnexpectedEof)),
        Ok(count) => Ok(Some(count)),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Numbers read at once: of 64 KiB, 256 KiB and 1 MiB, the first takes least of the processor's time.
const SCRATCH: usize = 16 * 1024;

/// Silence after which a process of the ring has died.
const LONGEST: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream as Stream};

    use super::*;

    fn ring(members: u32) -> Vec<Ring> {
        let listeners: Vec<_> = (0..members)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let plain = |stream: Stream| {
            stream.set_nonblocking(true).unwrap();
            TcpStream::from_std(stream)
        };
        let next: Vec<_> = (0..members as usize)
            .map(|place| {
                listeners[(place + 1) % members as usize]
                    .local_addr()
                    .unwrap()
            })
            .map(|address| Stream::connect(address).unwrap())
            .collect();
        let both = listeners.iter().zip(next).enumerate();
        both.map(|(place, (listener, next))| {
            let before = listener.accept().unwrap().0;
            Ring::new(place as u32, members, plain(before), plain(next)).unwrap()
        })
        .collect()
    }

    #[test]
    fn everybody_gets_the_sum_whatever_the_size() {
        for members in 1..6 {
            for count in [0, 1, 3, 1000, 300_001] {
                for in_place in [true, false] {
                    let own = |place: usize| -> Vec<f32> {
                        (0..count)
                            .map(|i| ((i * 7 + place * 3) % 1000) as f32)
                            .collect()
                    };
                    let threads: Vec<_> = ring(members)
                        .into_iter()
                        .enumerate()
                        .map(|(place, mut ring)| {
                            let own = own(place);
                            std::thread::spawn(move || {
                                if in_place {
                                    let mut buffer = own;
                                    let sent = ring.all_reduce(None, &mut buffer).unwrap();
                                    (sent, buffer)
                                } else {
                                    let mut result = vec![-1.0; own.len()];
                                    if members == 1 {
                                        result.clone_from(&own);
                                    }
                                    let sent = ring.all_reduce(Some(&own), &mut result).unwrap();
                                    (sent, result)
                                }
                            })
                        })
                        .collect();
                    let done: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
                    let all: u64 = done.iter().map(|(sent, _)| sent).sum();
                    assert_eq!(all, 8 * (u64::from(members) - 1) * count as u64);
                    let mut wanted = vec![0.0; count];
                    for place in 0..members as usize {
                        let own = own(place);
                        wanted.iter_mut().zip(own).for_each(|(sum, x)| *sum += x);
                    }
                    assert!(
                        done.iter().all(|(_, sum)| *sum == wanted),
                        "{members} {count}"
                    );
                }
            }
        }
    }
}
