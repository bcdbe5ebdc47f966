//! Randomness of the operating system, for what the pure machines must be handed.

use crate::error::{Error, Result};

/// 128 bits that nobody can guess.
pub(crate) fn u128() -> Result<u128> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::Internal(format!("the system gives no randomness: {e}")))?;
    Ok(u128::from_le_bytes(bytes))
}

/// 64 bits that nobody can guess.
pub(crate) fn u64() -> Result<u64> {
    u128().map(|bits| bits as u64)
}
