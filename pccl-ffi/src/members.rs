//! Who is in the run: own number and place, and the others.

use crate::arguments::output;
use crate::communicator::{Comm, connected};
use crate::entry::run_initialized;
use crate::failure::Failure;
use crate::layout::{CommHandle, Enum, MemberInfo, TEXT};

/// Own number in the run.
///
/// # Safety
///
/// Unless null, `id_out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclGetMemberId(
    communicator: *const CommHandle,
    id_out: *mut u64,
) -> Enum {
    run_initialized("pcclGetMemberId", || {
        let comm = connected(communicator)?;
        // SAFETY: the caller's promise.
        let out = unsafe { output(id_out, "id_out") }?;
        out.set(own_id(&comm)?);
        Ok(())
    })
}

/// Own place in the ring.
///
/// # Safety
///
/// Unless null, `rank_out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclGetRank(communicator: *const CommHandle, rank_out: *mut u32) -> Enum {
    run_initialized("pcclGetRank", || {
        let comm = connected(communicator)?;
        // SAFETY: the caller's promise.
        let out = unsafe { output(rank_out, "rank_out") }?;
        let own = own_id(&comm)?;
        let members = comm.lease()?.members();
        let rank = members.iter().position(|member| member.id.0 == own);
        out.set(
            rank.and_then(|rank| u32::try_from(rank).ok())
                .ok_or_else(no_member)?,
        );
        Ok(())
    })
}

/// Members of the group.
///
/// # Safety
///
/// Unless null, `members` has `capacity` places, and `count_out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclGetMembers(
    communicator: *const CommHandle,
    members: *mut MemberInfo,
    capacity: usize,
    count_out: *mut usize,
) -> Enum {
    run_initialized("pcclGetMembers", || {
        let comm = connected(communicator)?;
        // SAFETY: the caller's promise.
        let out = unsafe { output(count_out, "count_out") }?;
        if capacity > 0 {
            // SAFETY: no value is read: this checks the pointer.
            unsafe { output(members, "members") }?;
        }
        let known = comm.lease()?.members();
        for (place, member) in known.iter().take(capacity).enumerate() {
            let address = member.addresses.first().map(ToString::to_string);
            let info = MemberInfo {
                id: member.id.0,
                name: cut(&member.name),
                address: cut(address.as_deref().unwrap_or_default()),
            };
            // SAFETY: `place` is below the capacity that the caller promised.
            unsafe { members.add(place).write(info) };
        }
        out.set(known.len());
        Ok(())
    })
}

fn own_id(comm: &Comm) -> Result<u64, Failure> {
    comm.lease()?
        .member_id()
        .map(|id| id.0)
        .ok_or_else(no_member)
}

fn no_member() -> Failure {
    Failure::usage("this peer is no member of the run; connect or update the topology first")
}

/// As much of a text as fits before its zero, without half a character.
pub(crate) fn cut(text: &str) -> [u8; TEXT] {
    let mut bytes = [0; TEXT];
    let mut end = text.len().min(TEXT - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    for (to, from) in bytes.iter_mut().zip(text.as_bytes().iter().take(end)) {
        *to = *from;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = format!("{}é", "x".repeat(62));
        let bytes = cut(&long);
        assert_eq!(&bytes[..62], "x".repeat(62).as_bytes());
        assert_eq!(&bytes[62..], [0, 0]);
        assert_eq!(&cut("ab")[..3], b"ab\0");
    }
}
