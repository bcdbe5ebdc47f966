//! The subcommand `peer`: one member of a run, over the library's public interface.

use std::time::Duration;

use clap::{Args, ValueEnum};
use pccl_core::config::{PeerConfig, Place};
use pccl_core::error::Error;
use pccl_core::ids::{PeerGroup, Tag};
use pccl_core::types::{Algorithm, QuantizationAlgorithm, QuantizedType, ReduceOp, Reduction};
use pccl_core::{CallOptions, Communicator};

use crate::serve::{Reducer, Tensor, serve};
use crate::words::Join;

/// What a peer needs to know. It has no rank: who it is among the members is the run's matter.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Where the master is, as HOST:PORT.
    #[arg(long)]
    master: String,
    #[command(flatten)]
    settings: Settings,
    /// Group to join.
    #[arg(long, default_value_t = 0)]
    group: u32,
    /// Where to listen for other peers; by default at the address that reaches the master.
    #[arg(long)]
    listen: Option<Place>,
}

/// Settings of a peer that those who measure choose.
#[derive(Args, Clone, Debug)]
pub(crate) struct Settings {
    /// Connections per edge; zero lets the library choose.
    #[arg(long, default_value_t = 0)]
    lanes: u16,
    /// Data that travels quantised.
    #[arg(long, value_enum)]
    pub(crate) quantize: Option<Quantize>,
    /// Algorithm: ring, star or direct; by default what the library chooses.
    #[arg(long)]
    algorithm: Option<Algorithm>,
}

/// How data is quantised.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Quantize {
    /// By the range of each block, to 8 bits.
    MinmaxU8,
    /// By the range of each block, to 16 bits.
    MinmaxU16,
    /// Around a zero point, to 8 bits.
    ZpsU8,
    /// Around a zero point, to 16 bits.
    ZpsU16,
}

impl Settings {
    /// As arguments of the subcommand.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["--lanes".to_owned(), self.lanes.to_string()];
        if let Some(value) = self.quantize.and_then(|q| q.to_possible_value()) {
            arguments.extend(["--quantize".to_owned(), value.get_name().to_owned()]);
        }
        if let Some(algorithm) = self.algorithm {
            arguments.extend(["--algorithm".to_owned(), algorithm.name().to_owned()]);
        }
        arguments
    }

    fn reduction(&self) -> Reduction {
        use QuantizationAlgorithm::{MinMax, ZeroPointScale};
        use QuantizedType::{U8, U16};
        let sum: Reduction = match self.quantize {
            None => ReduceOp::Sum.into(),
            Some(Quantize::MinmaxU8) => ReduceOp::Sum.quantized(MinMax, U8),
            Some(Quantize::MinmaxU16) => ReduceOp::Sum.quantized(MinMax, U16),
            Some(Quantize::ZpsU8) => ReduceOp::Sum.quantized(ZeroPointScale, U8),
            Some(Quantize::ZpsU16) => ReduceOp::Sum.quantized(ZeroPointScale, U16),
        };
        self.algorithm.map_or(sum, |algorithm| sum.by(algorithm))
    }
}

/// Carries out orders until there are no more.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let config = PeerConfig {
        group: PeerGroup(options.group),
        pool: options.settings.lanes,
        listen: options.listen.clone(),
        ..PeerConfig::default()
    };
    let communicator = Communicator::new(&options.master, config).map_err(|e| e.to_string())?;
    serve(Member {
        communicator,
        reduction: options.settings.reduction(),
    })
}

struct Member {
    communicator: Communicator,
    reduction: Reduction,
}

impl Reducer for Member {
    fn join(&mut self, join: &Join) -> Result<(), String> {
        let joined = self.communicator.connect(Some(PATIENCE));
        joined.map_err(|e| e.to_string())?;
        while self.communicator.attributes().global_world_size < join.members {
            match self
                .communicator
                .update_topology_with(CallOptions::within(PATIENCE))
            {
                // A round that failed for all is tried again by all.
                Ok(()) | Err(Error::Aborted { .. }) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    fn reduce(&mut self, tensors: &mut [Tensor]) -> Result<u64, String> {
        let reduced = match tensors {
            [Tensor { own, result: None }] => {
                self.communicator
                    .all_reduce_in_place(own, self.reduction, Tag(0))
            }
            [
                Tensor {
                    own,
                    result: Some(result),
                },
            ] => self
                .communicator
                .all_reduce(own, result, self.reduction, Tag(0)),
            several => return self.reduce_at_once(several),
        };
        reduced.map(|info| info.tx_bytes).map_err(|e| e.to_string())
    }
}

impl Member {
    fn reduce_at_once(&self, tensors: &mut [Tensor]) -> Result<u64, String> {
        let mut begun = Vec::new();
        for (tag, tensor) in (0..).zip(tensors.iter_mut()) {
            let own = std::mem::take(&mut tensor.own);
            let options = CallOptions::default();
            let call = self
                .communicator
                .all_reduce_async(own, self.reduction, Tag(tag), options);
            begun.push((tensor, call));
        }
        let mut sent = 0;
        for (tensor, call) in begun {
            let (own, info) = call.wait();
            tensor.own = own;
            sent += info.map_err(|e| e.to_string())?.tx_bytes;
        }
        Ok(sent)
    }
}

/// How long the others may take to appear.
const PATIENCE: Duration = Duration::from_secs(60);
