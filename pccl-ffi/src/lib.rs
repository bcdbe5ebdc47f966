//! The C interface of PCCL, as `include/pccl.h` declares it.
//!
//! Nothing is decided here: each function checks its arguments, calls `pccl_core`, and turns the
//! outcome into one of the thirteen result codes and a text. How the pieces hold together:
//!
//! - [`entry`]: the way in and out of every function. No panic leaves it.
//! - [`registry`]: pointers that C programs hold are names, looked up here and never followed, so
//!   that one that was destroyed is an error and nothing worse.
//! - `memory`: what happens when there is none left.
//! - `destructors`: what is done at the end of a thread, so that noting it down cannot fail.
//! - [`failure`]: which error is which code, function by function.
//! - [`layout`]: the structures, with their sizes and offsets asserted.
//!
//! `unsafe` is needed to read what callers point at and to lend their buffers; every such place
//! rests on a promise that the header asks of the caller, and says which.

#![allow(unsafe_code)]

pub mod arguments;
pub mod collectives;
pub mod communicator;
mod destructors;
pub mod entry;
pub mod failure;
pub mod layout;
pub mod library;
pub mod log;
pub mod master;
pub mod members;
mod memory;
mod operations;
mod quantization;
pub mod registry;
mod signals;
pub mod state;
pub mod sync_info;
