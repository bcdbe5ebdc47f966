//! Nothing lost: the send buffer is never changed, and an in-place buffer is given back byte for
//! byte as it was when its operation does not commit. Promise 3, rule 8.

use crate::sim::oracle::UseKey;

/// Judges the buffers of a call that returns.
pub(in crate::sim) fn returned(
    key: UseKey,
    given: &[u8],
    send: &[u8],
    in_place: bool,
    committed: bool,
) -> Result<(), String> {
    if in_place && committed {
        return Ok(());
    }
    if given == send {
        return Ok(());
    }
    let what = if in_place {
        "the in-place buffer was not restored"
    } else {
        "the send buffer was changed"
    };
    Err(format!("{key:?}: {what}: {given:02x?} became {send:02x?}"))
}
