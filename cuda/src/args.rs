//! Arguments of launches as bytes, once addresses are known.

use ops::cuda::{Arg, Launch};

/// Where the memory of one call lies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Addresses of inputs; 0 for one that is left out.
    pub inputs: Vec<u64>,
    /// Addresses of outputs.
    pub outputs: Vec<u64>,
    /// Address of the workspace.
    pub workspace: u64,
    /// Address of the status.
    pub status: u64,
    /// Number of the call, for the status.
    pub call: u32,
}

/// The bytes of each argument of a launch.
pub fn encode(launch: &Launch, places: &Places) -> Vec<Vec<u8>> {
    let address = |a: u64| a.to_le_bytes().to_vec();
    let one = |arg: &Arg| match arg {
        Arg::Input(i) => address(places.inputs.get(*i).copied().unwrap_or(0)),
        Arg::Output(i) => address(places.outputs.get(*i).copied().unwrap_or(0)),
        Arg::OutputFrom(i, more) => address(places.outputs.get(*i).map_or(0, |a| a + more)),
        Arg::Workspace(at) => address(places.workspace + at),
        Arg::Status => address(places.status),
        Arg::Call => places.call.to_le_bytes().to_vec(),
        // A null address, where it is none of the values.
        other => other.bytes(launch.wide).unwrap_or_else(|| address(0)),
    };
    launch.args.iter().map(one).collect()
}
