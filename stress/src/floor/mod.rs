//! The subcommand `floor`: the least that an all-reduce over TCP can cost, to be compared with.
//!
//! Processes in a ring send, receive and add as many bytes as the library's ring does, over one plain
//! connection to the next, and do nothing else: no checksums, no digests, no agreement, no
//! restoring, no messages of any sort. The loop is in `ring`.

mod ring;

use std::net::{SocketAddr, TcpListener, TcpStream};

use clap::Args;
use mio::net::TcpStream as MioStream;

use crate::serve::{Reducer, Tensor, say, serve};
use crate::words::{Answer, Join};

use self::ring::Ring;

/// What a process of the ring needs to know.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Where to listen; port zero takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

/// Carries out orders until there are no more.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let listener = TcpListener::bind(options.listen).map_err(|e| e.to_string())?;
    let address = listener.local_addr().map_err(|e| e.to_string())?;
    say(&Answer::Listens { address });
    serve(Floor {
        listener,
        ring: None,
    })
}

struct Floor {
    listener: TcpListener,
    ring: Option<Ring>,
}

impl Reducer for Floor {
    fn join(&mut self, join: &Join) -> Result<(), String> {
        let next = join.next.ok_or("the next in the ring is not known")?;
        let connected = || -> std::io::Result<Ring> {
            // All listen already, so the connection to the next is made before anybody accepts.
            let next = plain(TcpStream::connect(next)?)?;
            let (before, _) = self.listener.accept()?;
            Ring::new(join.place, join.members, plain(before)?, next)
        };
        self.ring = Some(connected().map_err(|e| e.to_string())?);
        Ok(())
    }

    fn reduce(&mut self, tensors: &mut [Tensor]) -> Result<u64, String> {
        let ring = self.ring.as_mut().ok_or("nobody has joined")?;
        let mut sent = 0;
        for Tensor { own, result } in tensors {
            let reduced = match result {
                None => ring.all_reduce(None, own),
                Some(result) => ring.all_reduce(Some(own), result),
            };
            sent += reduced.map_err(|e| e.to_string())?;
        }
        Ok(sent)
    }
}

fn plain(stream: TcpStream) -> std::io::Result<MioStream> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(MioStream::from_std(stream))
}
