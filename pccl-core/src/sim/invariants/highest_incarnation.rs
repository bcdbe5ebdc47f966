//! Peers obey the highest life of their run's master that they have been told of. Rule 3.

use crate::ids::{Incarnation, RunId};

/// The highest life that a peer was told of, and in which run.
pub(in crate::sim) type Highest = Option<(RunId, Incarnation)>;

/// A master has answered, and the peer has `obeyed` it or not.
pub(in crate::sim) fn answered(
    highest: &mut Highest,
    run: RunId,
    incarnation: Incarnation,
    obeyed: bool,
) -> Result<(), String> {
    match highest {
        Some((known, most)) if *known == run && *most > incarnation => match obeyed {
            true => Err(format!("obeyed {incarnation} of {run} after {most}")),
            false => Ok(()),
        },
        _ => {
            // One that was not obeyed has told nothing of another run.
            if obeyed {
                *highest = Some((run, incarnation));
            }
            Ok(())
        }
    }
}
