//! Who is whose neighbour. Pure: edges that work in, an order out.

pub mod ring;
