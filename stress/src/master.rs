//! The subcommand `master`.

use clap::Args;
use pccl_core::Master;
use pccl_core::config::MasterConfig;

use crate::serve::{orders, say};
use crate::usage;
use crate::words::{Answer, Order, Used};

/// What a master needs to know.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Where to listen, as HOST:PORT; port zero takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: String,
}

/// Serves until there are no more orders.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let master = Master::start(&options.listen, MasterConfig::default());
    let master = master.map_err(|e| e.to_string())?;
    say(&Answer::Listens {
        address: master.local_addr(),
    });
    let orders = orders();
    while let Ok(order) = orders.recv() {
        let answer = match order {
            Ok(Order::Usage) => Answer::Used(Used {
                cpu: usage::cpu(),
                memory: usage::memory(),
            }),
            Ok(other) => Answer::Failed {
                why: format!("{other:?} is no order for a master"),
            },
            Err(why) => Answer::Failed { why },
        };
        say(&answer);
    }
    Ok(())
}
