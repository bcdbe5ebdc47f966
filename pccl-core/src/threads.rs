//! Starting threads.

use std::io;
use std::thread::Builder;

/// A thread to be started. The error says that there is no memory for one: the standard library
/// would find that out only where it can do nothing but end the process.
pub(crate) fn named(name: &str) -> io::Result<Builder> {
    let mut room = Vec::<u8>::new();
    let refused = |_| io::Error::from(io::ErrorKind::OutOfMemory);
    room.try_reserve_exact(ROOM).map_err(refused)?;
    // Room that nobody looks at would not be asked for.
    std::hint::black_box(&room);
    Ok(Builder::new().name(name.to_owned()))
}

/// The stack, and what a thread needs besides to begin.
const ROOM: usize = 3 << 20;
