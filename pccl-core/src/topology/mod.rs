//! Who is whose neighbour, and over which sort of path. Pure: edges that work and what is measured of
//! them in, an order, a choice of algorithm, and settings out.

pub mod choice;
pub mod path;
pub mod ring;
