//! Events as the Python package takes them: a kind, a sentence, and the numbers in it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pccl_core::EventStream;
use pccl_core::event::Event;
use pccl_core::wire::control::{OpName, Outcome, VoteName};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::Function;
use crate::exit::{Inside, detached};
use crate::home::Home;
use crate::wait::{SLICE, seconds};

/// What happens at a communicator, from the subscription on.
#[pyclass(frozen, module = "pccl._native")]
pub(crate) struct Events {
    // Always there until the drop. Locked because a stream has one reader: a second waits for its
    // turn.
    stream: Option<Mutex<EventStream>>,
    closed: Arc<AtomicBool>,
    home: Home,
}

impl Events {
    pub(crate) fn new(stream: EventStream, closed: Arc<AtomicBool>) -> Self {
        Self {
            stream: Some(Mutex::new(stream)),
            closed,
            home: Home::here(),
        }
    }
}

#[pymethods]
impl Events {
    /// The next event as (kind, text, fields); none after `limit` seconds, or at the end.
    #[pyo3(signature = (limit))]
    fn next<'py>(
        &self,
        py: Python<'py>,
        limit: Option<f64>,
    ) -> PyResult<Option<(String, String, Bound<'py, PyDict>)>> {
        let _inside = Inside::enter(py);
        self.home.check(py, Function::Other("events"))?;
        let limit = seconds(py, Function::Other("events"), limit)?;
        let deadline = limit.and_then(|limit| std::time::Instant::now().checked_add(limit));
        loop {
            let ended = self.closed.load(Ordering::Acquire);
            let event = detached(py, || {
                let stream = self.stream.as_ref()?.lock();
                let stream = stream.unwrap_or_else(PoisonError::into_inner);
                stream.next_within(if ended { Duration::ZERO } else { SLICE })
            });
            if let Some(event) = event {
                return Ok(Some((kind(&event), event.to_string(), fields(py, &event)?)));
            }
            py.check_signals()?;
            let late = deadline.is_some_and(|end| end <= std::time::Instant::now());
            if ended || late {
                return Ok(None);
            }
        }
    }

    /// How many events were dropped because nobody read them in time.
    fn dropped(&self, py: Python<'_>) -> PyResult<u64> {
        self.home.check(py, Function::Other("events"))?;
        let stream = self.stream.as_ref().map(Mutex::lock);
        Ok(stream.map_or(0, |stream| {
            stream.unwrap_or_else(PoisonError::into_inner).dropped()
        }))
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let stream = self.stream.take();
        if !self.home.is_here() {
            std::mem::forget(stream);
        }
    }
}

/// The name of the variant, in lower case with underscores.
fn kind(event: &Event) -> String {
    let debug = format!("{event:?}");
    let name = debug
        .split(|c: char| !c.is_alphanumeric())
        .next()
        .unwrap_or("");
    let mut snake = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(c.to_lowercase());
    }
    snake
}

fn fields<'py>(py: Python<'py>, event: &Event) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    let op = |op: &OpName| -> PyResult<()> {
        fields.set_item("operation", op.key.to_string())?;
        fields.set_item("tag", op.key.tag.0)
    };
    let vote = |vote: &VoteName| fields.set_item("call", vote.call.to_string());
    match event {
        Event::Registered {
            member,
            name,
            group,
        } => {
            fields.set_item("member", member.0)?;
            fields.set_item("name", name)?;
            fields.set_item("group", group.0)?;
        }
        Event::Refused { name, .. } => fields.set_item("name", name)?,
        Event::Lost { member, name, .. } => {
            fields.set_item("member", member.0)?;
            fields.set_item("name", name)?;
        }
        Event::Admitted { member, .. }
        | Event::Evicted { member, .. }
        | Event::Detached { member, .. }
        | Event::Attached { member } => fields.set_item("member", member.0)?,
        Event::Group { group, epoch, ring } => {
            fields.set_item("group", group.0)?;
            fields.set_item("epoch", epoch.0)?;
            fields.set_item("members", ring.len())?;
        }
        Event::Verdict {
            op: name, outcome, ..
        } => {
            op(name)?;
            let outcome = if matches!(outcome, Outcome::Commit) {
                "commit"
            } else {
                "abort"
            };
            fields.set_item("outcome", outcome)?;
        }
        Event::FirstSegmentSent { op: name } => op(name)?,
        Event::Completed { vote: name } | Event::VoteFailed { vote: name, .. } => vote(name)?,
        Event::CannotDial { from, to, .. } => {
            fields.set_item("member", from.0)?;
            fields.set_item("other", to.0)?;
        }
        Event::EdgeBroken { a, b } => {
            fields.set_item("member", a.0)?;
            fields.set_item("other", b.0)?;
        }
        Event::Stalled { gap_ms } => fields.set_item("gap_ms", *gap_ms)?,
        _ => {}
    }
    Ok(fields)
}
