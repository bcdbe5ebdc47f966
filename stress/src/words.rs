//! What the one who measures and the processes say to each other: a line of JSON each.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// An order, on a process's standard input. Each has one answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub(crate) enum Order {
    /// Be one of so many; answered by [`Answer::Joined`] when all are there.
    Join(Join),
    /// Have buffers for this; answered by [`Answer::Ready`].
    Prepare(Work),
    /// Fill the buffers with one's contribution; answered by [`Answer::Ready`].
    Fill,
    /// Reduce; answered by [`Answer::Done`].
    Go(Go),
    /// Say what has been used; answered by [`Answer::Used`].
    Usage,
}

/// Whom to find.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Join {
    /// How many there are to be.
    pub(crate) members: u32,
    /// Place in the ring of the bare loop. The library finds its own order.
    pub(crate) place: u32,
    /// Who is next in the ring of the bare loop.
    pub(crate) next: Option<SocketAddr>,
}

/// What will be reduced.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Work {
    /// Whose contribution this process makes: below `members`.
    pub(crate) identity: u32,
    /// How many contribute.
    pub(crate) members: u32,
    /// Bytes of one tensor of 32-bit floats.
    pub(crate) bytes: u64,
    /// How many tensors at once, each under a tag of its own.
    pub(crate) tags: u32,
    /// Whether the result takes the place of the contribution.
    pub(crate) in_place: bool,
    /// What is allowed between a result and the exact one, as a part of the largest.
    pub(crate) tolerance: f64,
}

/// One repetition.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Go {
    /// So many times in a row.
    pub(crate) times: u32,
    /// Whether each is timed by itself, on contributions that are filled in anew.
    pub(crate) each: bool,
    /// Milliseconds to be late by.
    pub(crate) late: u64,
    /// Whether the result is checked.
    pub(crate) check: bool,
}

/// What a process says, on its standard output.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(crate) enum Answer {
    /// Said by a master or a process of the bare loop when it has started.
    Listens {
        /// Where.
        address: SocketAddr,
    },
    /// All are there.
    Joined,
    /// May go on.
    Ready,
    /// A repetition has ended.
    Done(Done),
    /// What has been used.
    Used(Used),
    /// Nothing more will work.
    Failed {
        /// Why.
        why: String,
    },
}

/// One repetition, as one process has seen it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Done {
    /// From begin to end.
    pub(crate) seconds: f64,
    /// Time of all cores meanwhile.
    pub(crate) cpu: f64,
    /// Each by itself, if that was asked for.
    pub(crate) each: Vec<f64>,
    /// Bytes of memory at the most, over what there was before the first repetition.
    pub(crate) peak: Option<u64>,
    /// Bytes of data sent.
    pub(crate) sent: u64,
    /// What is wrong with the results, if anything is.
    pub(crate) wrong: Option<String>,
    /// Digest of the results: the same for all. Zero if they were not checked.
    pub(crate) digest: u64,
}

/// What a process has used.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Used {
    /// Time of all cores, in seconds, since it began.
    pub(crate) cpu: f64,
    /// Bytes of memory, over what there was before the first repetition.
    pub(crate) memory: Option<u64>,
}
