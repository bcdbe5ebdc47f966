//! Engines joined by pipes of bytes, with everything random that a network may choose: how many
//! bytes go at once, on which lane, in which order between lanes. From a seed.

mod algorithms;
mod faults;
mod flow;
mod harness;
mod hostile;
mod lanes;
#[cfg(feature = "sim")]
mod planted;
mod quantized;
mod reduce;
mod reference;
