//! `remora cluster transact`: one transaction on a running chain.

use std::path::PathBuf;

use remora_cluster::{ChainClient, ChainOutcome, Extent, Transaction, Tuple};

use crate::Failure;
use crate::cluster::{DIR, connect};
use crate::output::to_stdout;
use crate::quantity;

pub const EXAMPLES: &str = "\
A chain is bytes, and a place is how far in: what lies there is up to you. Texts are written as they are. It ends with status 1, \
and nothing is written, if anything is not as expected.

Examples:
  remora cluster transact --dir bank --write 0=5 --write 4096=5
  remora cluster transact --dir bank --expect 0=5 --write 0=4 --write 4096=6 --read 4096:1
  remora cluster transact --dir bank --read 0:1 --node 2      as node 2 has it";

/// Options of `remora cluster transact`.
#[derive(Debug, clap::Args)]
pub struct TransactArgs {
    /// Print so many bytes from this place on, as they were before
    #[arg(long, value_name = "OFFSET:LENGTH", value_parser = extent)]
    read: Vec<Extent>,
    /// Write nothing unless this is there
    #[arg(long, value_name = "OFFSET=TEXT", value_parser = tuple)]
    expect: Vec<Tuple>,
    /// Write this there
    #[arg(long, value_name = "OFFSET=TEXT", value_parser = tuple)]
    write: Vec<Tuple>,
    /// The node to begin with: any member reads, and the head writes
    #[arg(long, value_name = "N", default_value = "0")]
    node: u8,
    /// The cluster's directory
    #[arg(long, value_name = "DIR", default_value = DIR)]
    dir: PathBuf,
}

fn extent(text: &str) -> Result<Extent, String> {
    let parts = text.split_once(':').ok_or("give a place and a length, such as 64:8")?;
    let length = u32::try_from(quantity::size(parts.1)?).map_err(|_| "that is too long")?;
    Ok(Extent { offset: quantity::size(parts.0)?, length })
}

fn tuple(text: &str) -> Result<Tuple, String> {
    let (offset, data) = text.split_once('=').ok_or("give a place and a text, such as 64=hello")?;
    Ok(Tuple { offset: quantity::size(offset)?, data: data.as_bytes().into() })
}

/// Does the transaction.
pub fn run(args: &TransactArgs) -> Result<(), Failure> {
    let TransactArgs { read, expect, write, node, dir } = args;
    if read.is_empty() && expect.is_empty() && write.is_empty() {
        return Err(Failure::Usage("a transaction has --read, --expect or --write".into()));
    }
    let mut client: ChainClient = connect(dir, (*node).into())?;
    let transaction = Transaction { reads: read.clone(), expects: expect.clone(), writes: write.clone() };
    let failed = |why: String| Err(Failure::Failed(why));
    match client.transact(transaction) {
        ChainOutcome::Done(read) => show(&read),
        ChainOutcome::Unequal(read) => {
            show(&read)?;
            failed("something else is there than was expected: nothing was written".into())
        }
        ChainOutcome::Before if read.is_empty() => Ok(()),
        ChainOutcome::Before => failed("it was done, and what it read was lost with the node that answered".into()),
        ChainOutcome::Refused(refusal) => failed(format!("it was not done: {refusal}")),
        ChainOutcome::Unknown => failed("whether it was done is not known".into()),
    }
}

fn show(read: &[std::sync::Arc<[u8]>]) -> Result<(), Failure> {
    read.iter().try_for_each(|bytes| to_stdout(&[&bytes[..], b"\n"].concat()))
}
