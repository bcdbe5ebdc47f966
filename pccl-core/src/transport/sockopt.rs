//! Options of sockets: the one place that asks which operating system this is.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::config::Timing;
use crate::topology::path::Congestion;

/// What a connection is used for, as far as its options depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Small messages, now and then.
    Control,
    /// Data, as fast as it goes, that may be called off.
    Bulk,
}

/// What became of each option that was wanted.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Applied {
    /// Options in force.
    pub(crate) set: Vec<&'static str>,
    /// Options that the system turned down, with what it said. The connection works without.
    pub(crate) failed: Vec<(&'static str, String)>,
}

impl Applied {
    fn note(&mut self, name: &'static str, result: io::Result<()>) {
        match result {
            Ok(()) => self.set.push(name),
            Err(e) => self.failed.push((name, e.to_string())),
        }
    }
}

/// Sets the options of a connection. Every one is wanted, none is needed.
pub(crate) fn apply<'s>(socket: impl Into<SockRef<'s>>, role: Role, timing: &Timing) -> Applied {
    let socket = socket.into();
    let mut applied = Applied::default();
    // Small frames must not wait for the acknowledgement of the last one.
    applied.note("nodelay", socket.set_tcp_nodelay(true));
    // Finds a dead other end on an idle connection, and keeps translators of addresses awake.
    let keepalive = TcpKeepalive::new().with_time(timing.peer_timeout);
    #[cfg(not(target_os = "openbsd"))]
    let keepalive = keepalive
        .with_interval(timing.heartbeat.max(SHORTEST_KEEPALIVE))
        .with_retries(KEEPALIVE_PROBES);
    applied.note("keepalive", socket.set_tcp_keepalive(&keepalive));
    // Finds a dead other end while data is under way. Longer than the peer time-out, so that
    // whoever judges by silence is first, and can name the peer and the phase.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    applied.note(
        "user timeout",
        socket.set_tcp_user_timeout(Some(timing.peer_timeout * 2)),
    );
    // What the kernel has not sent yet cannot be called back: little of it, so that the end of an
    // operation does not wait behind megabytes of another.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    if role == Role::Bulk {
        applied.note("notsent lowat", socket.set_tcp_notsent_lowat(UNSENT_BYTES));
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = role;
    #[cfg(target_vendor = "apple")]
    applied.note("nosigpipe", socket.set_nosigpipe(true));
    if !applied.failed.is_empty() {
        tracing::debug!(failed = ?applied.failed, "socket options turned down");
    }
    applied
}

/// Lets a connection find its rate as its path needs it (see [`Congestion`]); says what is in force.
///
/// A system that has not got what is wanted, or keeps it for others, stays with its own.
pub(crate) fn fit<'s>(socket: impl Into<SockRef<'s>>, round_trip: Duration) -> Option<String> {
    let socket = socket.into();
    let local = socket.local_addr().ok().and_then(|a| a.as_socket());
    let remote = socket.peer_addr().ok().and_then(|a| a.as_socket());
    // A connection to one of its own addresses does not leave the host.
    let own_host = remote.is_some_and(|remote| {
        remote.ip().is_loopback() || local.is_some_and(|local| local.ip() == remote.ip())
    });
    let applied = control(&socket, Congestion::of(own_host, round_trip));
    tracing::debug!(
        target: "pccl::peer", ?remote, ?round_trip, congestion = applied, "connection fitted to its path"
    );
    applied
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn control(socket: &SockRef<'_>, wanted: Congestion) -> Option<String> {
    let name: Option<&[u8]> = match wanted {
        // The one that every system has and lets everybody use. It knows no pacing.
        Congestion::Host => Some(b"reno"),
        Congestion::System => None,
        Congestion::Model => Some(b"bbr"),
    };
    if let Some(name) = name
        && let Err(cause) = socket.set_tcp_congestion(name)
    {
        tracing::debug!(?wanted, %cause, "congestion control turned down");
    }
    let name = socket.tcp_congestion().ok()?;
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    Some(String::from_utf8_lossy(name).into_owned())
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn control(_: &SockRef<'_>, _: Congestion) -> Option<String> {
    None
}

/// Writes without ever raising SIGPIPE, whatever the host program has made of that signal. (Rule
/// 24: the standard library's vectored write would raise it.)
pub(crate) fn send_vectored<'s>(
    socket: impl Into<SockRef<'s>>,
    parts: &[IoSlice<'_>],
) -> io::Result<usize> {
    socket.into().send_vectored_with_flags(parts, SEND_FLAGS)
}

/// Makes the close of a socket a reset: the other end sees an error, not an end.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn reset_on_close<'s>(socket: impl Into<SockRef<'s>>) -> io::Result<()> {
    socket.into().set_linger(Some(Duration::ZERO))
}

/// Listens at `address`, without blocking.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    // On Unix this lets a new listener take a port whose last connections have just been closed;
    // on Windows it would let two listeners share a port.
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        // Best effort: a system that cannot do both families on one socket still has one.
        let _ = socket.set_only_v6(false);
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Makes a file that only its owner can read, if the system has such files. It must not be there yet.
pub(crate) fn private_file(path: &std::path::Path) -> io::Result<std::fs::File> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Own address on the way to `remote`: what to listen on, or to announce. Sends nothing.
pub(crate) fn address_towards(remote: SocketAddr) -> io::Result<IpAddr> {
    let any = match remote {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(remote)?;
    Ok(socket.local_addr()?.ip())
}

/// Own addresses on the ways that lead outside: of IPv4, and of IPv6 if `both`.
pub(crate) fn addresses_outside(both: bool) -> impl Iterator<Item = IpAddr> {
    let outside = OUTSIDE.into_iter();
    let outside = outside.filter(move |far| both || far.is_ipv4());
    outside.filter_map(|far| address_towards(far).ok())
}

/// Addresses outside every network, of both families: the way there begins at the own address that
/// others see. Nothing is sent to them (RFC 5737, RFC 3849).
const OUTSIDE: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9),
    SocketAddr::new(
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
        9,
    ),
];

/// Systems count keepalive intervals in whole seconds.
const SHORTEST_KEEPALIVE: Duration = Duration::from_secs(1);

/// Unanswered keepalives after which a connection is dead: as many as heartbeats.
const KEEPALIVE_PROBES: u32 = 5;

/// A segment of the default size: what is written while one is on its way to the wire.
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNSENT_BYTES: u32 = 512 * 1024;

/// Connections that the system completes before they are accepted: a whole run may dial at once.
/// Systems cut it to their own limit.
const BACKLOG: i32 = 4096;

// Apple's systems have a socket option instead, Windows has no SIGPIPE.
#[cfg(all(unix, not(target_vendor = "apple")))]
const SEND_FLAGS: i32 = libc::MSG_NOSIGNAL;
#[cfg(not(all(unix, not(target_vendor = "apple"))))]
const SEND_FLAGS: i32 = 0;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpStream;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (dialled, listener.accept().unwrap().0)
    }

    #[test]
    fn all_options_of_this_system_are_set() {
        let (a, _b) = pair();
        let applied = apply(&a, Role::Bulk, &Timing::default());
        assert_eq!(applied.failed, []);
        assert!(applied.set.contains(&"nodelay") && applied.set.contains(&"keepalive"));
        assert!(a.nodelay().unwrap());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn connections_within_a_host_are_not_paced() {
        let (a, b) = pair();
        for end in [&a, &b] {
            assert_eq!(fit(end, Duration::from_secs(1)).as_deref(), Some("reno"));
        }
    }

    #[test]
    fn several_parts_are_sent_in_order() {
        let (a, mut b) = pair();
        let parts = [
            IoSlice::new(b"one "),
            IoSlice::new(b""),
            IoSlice::new(b"two"),
        ];
        assert_eq!(send_vectored(&a, &parts).unwrap(), 7);
        drop(a);
        let mut got = String::new();
        b.read_to_string(&mut got).unwrap();
        assert_eq!(got, "one two");
    }

    #[test]
    fn writing_to_a_closed_connection_is_an_error() {
        let (a, b) = pair();
        reset_on_close(&b).unwrap();
        drop(b);
        let parts = [IoSlice::new(b"x")];
        let error = (0..10).find_map(|_| send_vectored(&a, &parts).err());
        assert!(error.is_some());
    }

    #[test]
    fn a_port_can_be_bound_again_at_once() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(false).unwrap();
        let dialled = TcpStream::connect(address).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        drop((accepted, listener, dialled));
        assert!(listen(address).is_ok());
    }

    #[test]
    fn the_way_to_the_own_machine_starts_at_it() {
        let remote = "127.0.0.1:9".parse().unwrap();
        assert!(address_towards(remote).unwrap().is_loopback());
    }
}
