//! A relay of TCP connections for tests: delays, throttles, splits, cuts and resets what passes.
//!
//! It ends TCP on both sides, so what it does to the bytes is what a bad path does as far as an
//! application can see: late, slow, in odd pieces, or not at all.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::sockopt;

/// What a relay does to its connections, present and future.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Rules {
    /// How long a byte takes, in each direction.
    pub delay: Duration,
    /// Bytes per second, for each connection and direction.
    pub rate: Option<u64>,
    /// Pass bytes on in pieces of odd sizes up to this many.
    pub pieces: Option<usize>,
    /// Nothing passes from the dialler to the target; nothing is lost either.
    pub cut_forward: bool,
    /// Nothing passes from the target to the dialler; nothing is lost either.
    pub cut_backward: bool,
    /// New connections are reset at once.
    pub refuse: bool,
    /// One bit of this byte arrives changed, in each direction of each connection.
    pub flip: Option<u64>,
}

/// A relay to one address, on a thread of its own, until dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    rules: watch::Sender<Rules>,
    resets: watch::Sender<u64>,
    open: Arc<AtomicUsize>,
    passed: Arc<AtomicU64>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Relays what comes to [`Relay::address`] to `target`.
    pub fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = sockopt::listen((Ipv4Addr::LOCALHOST, 0).into())?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (rules, rules_seen) = watch::channel(Rules::default());
        let (resets, resets_seen) = watch::channel(0);
        let (stop, stopped) = oneshot::channel();
        let open = Arc::new(AtomicUsize::new(0));
        let passed = Arc::new(AtomicU64::new(0));
        let path = Path {
            target,
            rules: rules_seen,
            resets: resets_seen,
            open: open.clone(),
            passed: passed.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("pccl-relay".into())
            .spawn(move || {
                runtime.block_on(async {
                    let Ok(listener) = TcpListener::from_std(listener) else {
                        return;
                    };
                    tokio::select! {
                        () = accept(listener, path) => {}
                        _ = stopped => {}
                    }
                });
            })?;
        Ok(Self {
            address,
            rules,
            resets,
            open,
            passed,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where to dial.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Other rules from now on; bytes on their way keep the delay that they set out with.
    pub fn set(&self, rules: Rules) {
        self.rules.send_replace(rules);
    }

    /// Resets all connections, on both sides.
    pub fn reset(&self) {
        self.resets.send_modify(|n| *n += 1);
    }

    /// Connections that are open.
    pub fn connections(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Bytes passed on, in both directions together, since the start.
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::Acquire)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // A panic in it has been printed; the test fails by what it misses.
            let _ = thread.join();
        }
    }
}

#[derive(Clone)]
struct Path {
    target: SocketAddr,
    rules: watch::Receiver<Rules>,
    resets: watch::Receiver<u64>,
    open: Arc<AtomicUsize>,
    passed: Arc<AtomicU64>,
}

async fn accept(listener: TcpListener, path: Path) {
    loop {
        let Ok((dialler, _)) = listener.accept().await else {
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        let full = path.open.load(Ordering::Acquire) >= CONNECTIONS;
        if full || path.rules.borrow().refuse {
            let _ = sockopt::reset_on_close(&dialler);
            continue;
        }
        path.open.fetch_add(1, Ordering::AcqRel);
        let path = path.clone();
        tokio::spawn(async move {
            connection(dialler, &path).await;
            path.open.fetch_sub(1, Ordering::AcqRel);
        });
    }
}

async fn connection(mut dialler: TcpStream, path: &Path) {
    let mut resets = path.resets.clone();
    resets.mark_unchanged();
    let Ok(mut target) = TcpStream::connect(path.target).await else {
        let _ = sockopt::reset_on_close(&dialler);
        return;
    };
    let _ = (dialler.set_nodelay(true), target.set_nodelay(true));
    let passed = {
        let (from_dialler, to_dialler) = dialler.split();
        let (from_target, to_target) = target.split();
        let forward = pump(from_dialler, to_target, path, |r| r.cut_forward);
        let backward = pump(from_target, to_dialler, path, |r| r.cut_backward);
        tokio::select! {
            both = async { tokio::try_join!(forward, backward) } => both.is_ok(),
            _ = resets.changed() => false,
        }
    };
    if !passed {
        let _ = sockopt::reset_on_close(&dialler);
        let _ = sockopt::reset_on_close(&target);
    }
}

/// Passes one direction on until its end; an error of either side ends both.
async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    path: &Path,
    is_cut: fn(&Rules) -> bool,
) -> io::Result<()> {
    let (queue, mut queued) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES);
    let mut seen = path.rules.clone();
    let reading = async move {
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut free_at = Instant::now();
        let mut before = 0;
        loop {
            heal(&mut seen, is_cut).await;
            let n = from.read(&mut chunk).await?;
            let rules = *seen.borrow_and_update();
            let now = Instant::now();
            free_at = free_at.max(now);
            if let Some(rate) = rules.rate {
                free_at += Duration::from_secs_f64(n as f64 / rate.max(1) as f64);
                sleep_until(free_at).await;
            }
            let mut piece = chunk.get(..n).unwrap_or_default().to_vec();
            let at = rules.flip.and_then(|at| at.checked_sub(before));
            let at = at.and_then(|at| usize::try_from(at).ok());
            if let Some(byte) = at.and_then(|at| piece.get_mut(at)) {
                *byte ^= 1;
            }
            before += n as u64;
            if queue.send((free_at + rules.delay, piece)).await.is_err() || n == 0 {
                return Ok::<_, io::Error>(());
            }
        }
    };
    let mut seen = path.rules.clone();
    let writing = async move {
        let mut size = 1;
        while let Some((due, piece)) = queued.recv().await {
            sleep_until(due).await;
            heal(&mut seen, is_cut).await;
            if piece.is_empty() {
                return to.shutdown().await;
            }
            let most = seen.borrow_and_update().pieces;
            let mut rest = piece.as_slice();
            while !rest.is_empty() {
                // Any full cycle through the sizes will do; multiplying keeps them odd.
                size = (size * 5 + 3) % 8191;
                let n = most.map_or(rest.len(), |most| size % most.max(1) + 1);
                let (now, later) = rest.split_at(n.min(rest.len()));
                to.write_all(now).await?;
                path.passed.fetch_add(now.len() as u64, Ordering::AcqRel);
                if most.is_some() {
                    tokio::task::yield_now().await;
                }
                rest = later;
            }
        }
        Ok(())
    };
    tokio::try_join!(reading, writing).map(|_| ())
}

async fn heal(rules: &mut watch::Receiver<Rules>, is_cut: fn(&Rules) -> bool) {
    // An error means that the relay is being dropped, which ends this task too.
    let _ = rules.wait_for(|r| !is_cut(r)).await;
}

/// Connections of one relay; more are reset.
const CONNECTIONS: usize = 256;

/// Bytes taken at a time.
const CHUNK_BYTES: usize = 16 * 1024;

/// Pieces on their way in one direction of a connection; with these a path of 1 Gbit/s and 100 ms
/// is full.
const PIECES: usize = 1024;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// A connection through a relay: dialler's end, target's end.
    fn connect(relay: &Relay, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let dialled = TcpStream::connect(relay.address()).unwrap();
        (dialled, listener.accept().unwrap().0)
    }

    fn start() -> (Relay, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        (
            Relay::start(listener.local_addr().unwrap()).unwrap(),
            listener,
        )
    }

    #[test]
    fn every_byte_passes_in_order_in_small_pieces() {
        let (relay, listener) = start();
        relay.set(Rules {
            pieces: Some(7),
            ..Rules::default()
        });
        let (mut a, mut b) = connect(&relay, &listener);
        let sent: Vec<u8> = (0..20_000u32).map(|i| (i % 251) as u8).collect();
        let copy = sent.clone();
        let writer = std::thread::spawn(move || a.write_all(&copy));
        let mut got = Vec::new();
        b.read_to_end(&mut got).unwrap();
        writer.join().unwrap().unwrap();
        assert_eq!(got, sent);
    }

    #[test]
    fn delay_and_rate_are_kept() {
        let (relay, listener) = start();
        let delay = Duration::from_millis(50);
        relay.set(Rules {
            delay,
            rate: Some(1_000_000),
            ..Rules::default()
        });
        let (mut a, mut b) = connect(&relay, &listener);
        let begin = Instant::now();
        let writer = std::thread::spawn(move || a.write_all(&[1; 100_000]));
        let mut got = Vec::new();
        b.read_to_end(&mut got).unwrap();
        writer.join().unwrap().unwrap();
        assert_eq!(got.len(), 100_000);
        assert!(begin.elapsed() >= delay + Duration::from_millis(100));
    }

    #[test]
    fn a_cut_holds_bytes_in_its_direction_until_it_heals() {
        let (relay, listener) = start();
        let (mut a, mut b) = connect(&relay, &listener);
        relay.set(Rules {
            cut_forward: true,
            ..Rules::default()
        });
        a.write_all(b"held").unwrap();
        b.write_all(b"passes").unwrap();
        let mut got = [0; 6];
        a.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"passes");
        b.set_nonblocking(true).unwrap();
        let held = b.read(&mut got).unwrap_err();
        assert_eq!(held.kind(), io::ErrorKind::WouldBlock);
        b.set_nonblocking(false).unwrap();
        relay.set(Rules::default());
        b.read_exact(&mut got[..4]).unwrap();
        assert_eq!(&got[..4], b"held");
    }

    #[test]
    fn a_reset_is_an_error_at_both_ends() {
        let (relay, listener) = start();
        let (mut a, mut b) = connect(&relay, &listener);
        a.write_all(b"x").unwrap();
        b.read_exact(&mut [0]).unwrap();
        assert_eq!(relay.connections(), 1);
        relay.reset();
        assert!(a.read(&mut [0]).is_err());
        assert!(b.read(&mut [0]).is_err());
    }

    #[test]
    fn refused_connections_do_not_reach_the_target() {
        let (relay, _listener) = start();
        relay.set(Rules {
            refuse: true,
            ..Rules::default()
        });
        let dialled = TcpStream::connect(relay.address());
        assert!(dialled.and_then(|mut s| s.read(&mut [0])).is_err());
    }
}
