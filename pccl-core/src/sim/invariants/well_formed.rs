//! Correct engines find nothing to object to in one another's frames: none comes where no room was
//! granted, or that does not fit its operation. Rules 2 and 7.

use crate::wire::reason::RequestCause;

/// An engine gave an operation up.
pub(in crate::sim) fn failed(cause: &RequestCause) -> Result<(), String> {
    match cause {
        RequestCause::BadFrame { peer, what } => {
            Err(format!("a frame of {peer} was refused: {what}"))
        }
        _ => Ok(()),
    }
}
