//! Who is whose neighbour, and how paths are used. Pure: edges that work in, an order out.

pub mod path;
pub mod ring;
