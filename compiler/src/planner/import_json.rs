//! Training graphs in JSON: one node an operator with one output, bytes and a cost.
//!
//! The format in which other planners' results are published (`nodes` with `id`, `name`, `inputs`, `bytes`, `cost`, `is_param`;
//! `outputs`), read as a planning problem so that ours can be compared with them. Its convention is kept: parameters, graph outputs and
//! static bytes count 0, there is no workspace and no overwriting, every node runs at least once, sizes are not rounded. A cost is
//! taken as nanoseconds whatever its unit: only fractions of it mean anything. Where they add up to 2^50 or more, the unit is made coarser.

use serde_json::{Map, Value as Json};

use crate::planner::{
    coarse::coarsen,
    problem::{Implementation, Node, NodeId, Problem, Value, ValueId},
};

/// What is wrong with a graph file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// Not JSON.
    #[error("not JSON: {message}")]
    Syntax {
        /// The parser's words, with line and column.
        message: String,
    },
    /// A field is missing.
    #[error("{place}: no field {field:?}")]
    Missing {
        /// The object that lacks it.
        place: String,
        /// The field.
        field: &'static str,
    },
    /// A field is of the wrong kind.
    #[error("{place}: field {field:?} is not {expected}")]
    Kind {
        /// The object that has it.
        place: String,
        /// The field.
        field: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// An id occurs twice.
    #[error("{place}: id {id} is taken by an earlier node")]
    DuplicateId {
        /// The later node.
        place: String,
        /// The id.
        id: u64,
    },
    /// A node reads something that does not come before it.
    #[error("{place}: input {id} is no earlier node")]
    UnknownInput {
        /// The reading node.
        place: String,
        /// The id read.
        id: u64,
    },
    /// An output that is no node.
    #[error("outputs: {id} is no node")]
    UnknownOutput {
        /// The id.
        id: u64,
    },
    /// A parameter that reads something.
    #[error("{place}: a parameter has inputs")]
    ParameterWithInputs {
        /// The node.
        place: String,
    },
    /// Sizes or costs together exceed 64 bits.
    #[error("{place}: the {field} of the nodes up to here exceed 2^64 together")]
    TooLarge {
        /// The node at which they do.
        place: String,
        /// `bytes` or `cost`.
        field: &'static str,
    },
}

/// A graph read as a problem.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The problem: one node an operator (parameters are values only).
    pub problem: Problem,
    /// The file's id of each node of the problem.
    pub node_ids: Vec<u64>,
}

/// Reads a graph.
pub fn import(text: &str) -> Result<Imported, JsonError> {
    let json: Json = serde_json::from_str(text).map_err(|e| JsonError::Syntax { message: e.to_string() })?;
    let top = Object { place: "graph".to_string(), fields: json.as_object() };
    let outputs = top.ids("outputs")?;
    let mut problem = Problem { alignment: 1, ..Problem::default() };
    let mut node_ids = Vec::new();
    let mut value_of = std::collections::BTreeMap::new();
    let (mut bytes_so_far, mut cost_so_far) = (0u64, 0u64);
    for (index, node) in top.array("nodes")?.iter().enumerate() {
        let mut node = Object { place: format!("node {index}"), fields: node.as_object() };
        let id = node.number("id")?;
        let name = node.text("name")?.unwrap_or_else(|| format!("node{id}"));
        node.place = format!("node {index} ({name:?})");
        let parameter = node.flag("is_param")?;
        let (bytes, cost) = (node.number("bytes")?, node.number("cost")?);
        let value = problem.values.len() as ValueId;
        let mut inputs: Vec<ValueId> = Vec::new();
        for id in node.ids("inputs")? {
            let &input =
                value_of.get(&id).ok_or_else(|| JsonError::UnknownInput { place: node.place.clone(), id })?;
            if !inputs.contains(&input) {
                inputs.push(input);
            }
        }
        if value_of.insert(id, value).is_some() {
            return Err(JsonError::DuplicateId { place: node.place, id });
        }
        let too_large = |field| JsonError::TooLarge { place: node.place.clone(), field };
        bytes_so_far = bytes_so_far.checked_add(bytes).ok_or_else(|| too_large("bytes"))?;
        cost_so_far = cost_so_far.checked_add(cost).ok_or_else(|| too_large("cost"))?;
        let mut producer = None;
        if parameter {
            if !inputs.is_empty() {
                return Err(JsonError::ParameterWithInputs { place: node.place });
            }
        } else {
            producer = Some(problem.nodes.len() as NodeId);
            node_ids.push(id);
            problem.nodes.push(Node {
                name: name.clone(),
                inputs,
                outputs: vec![value],
                implementations: vec![Implementation { workspace: 0, time: cost }],
                overwrites: Vec::new(),
                once: false,
                required: true,
            });
        }
        let bytes = if parameter { 0 } else { bytes };
        problem.values.push(Value {
            name,
            producer,
            bytes,
            view_of: None,
            resident: parameter,
            keep_to_end: false,
        });
    }
    for id in outputs {
        let &value = value_of.get(&id).ok_or(JsonError::UnknownOutput { id })?;
        let value = &mut problem.values[value as usize];
        value.bytes = 0;
        value.keep_to_end = true;
    }
    coarsen(&mut problem);
    Ok(Imported { problem, node_ids })
}

/// An object of the file, with the words that name it in errors.
struct Object<'a> {
    place: String,
    fields: Option<&'a Map<String, Json>>,
}

impl<'a> Object<'a> {
    fn get(&self, field: &'static str) -> Result<&'a Json, JsonError> {
        let fields = self.fields.ok_or_else(|| self.kind(field, "in an object"))?;
        fields.get(field).ok_or_else(|| JsonError::Missing { place: self.place.clone(), field })
    }

    fn kind(&self, field: &'static str, expected: &'static str) -> JsonError {
        JsonError::Kind { place: self.place.clone(), field, expected }
    }

    fn array(&self, field: &'static str) -> Result<&'a [Json], JsonError> {
        let array = self.get(field)?.as_array().ok_or_else(|| self.kind(field, "a list"))?;
        Ok(array)
    }

    /// An unsigned number; a whole floating-point number is one too.
    fn number(&self, field: &'static str) -> Result<u64, JsonError> {
        whole(self.get(field)?).ok_or_else(|| self.kind(field, "an unsigned whole number below 2^64"))
    }

    fn ids(&self, field: &'static str) -> Result<Vec<u64>, JsonError> {
        let ids =
            self.array(field)?.iter().map(|v| whole(v).ok_or_else(|| self.kind(field, "a list of ids")));
        ids.collect()
    }

    fn text(&self, field: &'static str) -> Result<Option<String>, JsonError> {
        match self.get(field) {
            Ok(value) => {
                value.as_str().map(|s| Some(s.to_string())).ok_or_else(|| self.kind(field, "a string"))
            }
            Err(JsonError::Missing { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn flag(&self, field: &'static str) -> Result<bool, JsonError> {
        match self.get(field) {
            Ok(value) => value.as_bool().ok_or_else(|| self.kind(field, "true or false")),
            Err(JsonError::Missing { .. }) => Ok(false),
            Err(e) => Err(e),
        }
    }
}

fn whole(value: &Json) -> Option<u64> {
    let float = |f: f64| (f >= 0.0 && f.fract() == 0.0 && f < 2f64.powi(64)).then_some(f as u64);
    value.as_u64().or_else(|| value.as_f64().and_then(float))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"{"nodes":[
        {"id":7,"name":"w","inputs":[],"bytes":40,"cost":0,"is_param":true},
        {"id":8,"name":"a","inputs":[7,7],"bytes":10,"cost":5,"is_param":false},
        {"id":9,"inputs":[8,7],"bytes":20,"cost":6.0}],
        "outputs":[9]}"#;

    #[test]
    fn parameters_and_outputs_count_nothing() {
        let Imported { problem, node_ids } = import(SMALL).unwrap();
        assert_eq!(node_ids, [8, 9]);
        assert_eq!((problem.resident, problem.alignment), (0, 1));
        let values: Vec<_> =
            problem.values.iter().map(|v| (v.bytes, v.producer, v.resident, v.keep_to_end)).collect();
        assert_eq!(values, [(0, None, true, false), (10, Some(0), false, false), (0, Some(1), false, true)]);
        assert_eq!(
            (problem.nodes[0].inputs.as_slice(), problem.nodes[1].inputs.as_slice()),
            ([0].as_slice(), [1, 0].as_slice())
        );
        assert_eq!((problem.nodes[1].name.as_str(), problem.nodes[1].implementations[0].time), ("node9", 6));
    }

    #[test]
    fn errors_name_the_place() {
        let cases = [
            ("[1,", "not JSON: EOF while parsing a value at line 1 column 3"),
            ("[]", "graph: field \"outputs\" is not in an object"),
            (r#"{"outputs":[]}"#, "graph: no field \"nodes\""),
            (r#"{"outputs":[],"nodes":[3]}"#, "node 0: field \"id\" is not in an object"),
            (
                r#"{"outputs":[],"nodes":[{"id":-1}]}"#,
                "node 0: field \"id\" is not an unsigned whole number below 2^64",
            ),
            (
                r#"{"outputs":[],"nodes":[{"id":0,"name":"x","bytes":1}]}"#,
                "node 0 (\"x\"): no field \"cost\"",
            ),
            (
                r#"{"outputs":[],"nodes":[{"id":0,"name":"x","bytes":1,"cost":1,"inputs":[0]}]}"#,
                "node 0 (\"x\"): input 0 is no earlier node",
            ),
            (r#"{"outputs":[4],"nodes":[]}"#, "outputs: 4 is no node"),
            (
                r#"{"outputs":[],"nodes":[{"id":0,"bytes":1,"cost":18446744073709551615,"inputs":[]},{"id":1,"bytes":1,"cost":1,"inputs":[]}]}"#,
                "node 1 (\"node1\"): the cost of the nodes up to here exceed 2^64 together",
            ),
        ];
        for (text, message) in cases {
            assert_eq!(import(text).unwrap_err().to_string(), message, "{text}");
        }
        let twice = SMALL.replace("\"id\":9", "\"id\":8");
        assert_eq!(
            import(&twice).unwrap_err().to_string(),
            "node 2 (\"node8\"): id 8 is taken by an earlier node"
        );
    }

    #[test]
    fn whole_floats_are_numbers_below_the_limit() {
        let cost = |text: &str| {
            import(&SMALL.replace("6.0", text)).map(|i| i.problem.nodes[1].implementations[0].time)
        };
        assert_eq!((cost("1e15"), cost("6e0")), (Ok(1_000_000_000_000_000), Ok(6)));
        // In units of 2^13.
        assert_eq!(cost("9.2e18"), Ok(9_200_000_000_000_000_000 >> 13));
        for wrong in ["1.8446744073709552e19", "-1e3", "0.5", "1e300"] {
            assert!(cost(wrong).unwrap_err().to_string().contains("below 2^64"), "{wrong}");
        }
    }

    #[test]
    fn cut_short_or_garbled_files_are_errors() {
        for end in 0..SMALL.len() {
            assert!(import(&SMALL[..end]).is_err());
        }
        for at in 0..SMALL.len() {
            for byte in [b'"', b'9', b'[', b'}'] {
                let mut bytes = SMALL.as_bytes().to_vec();
                bytes[at] = byte;
                let _ = import(std::str::from_utf8(&bytes).unwrap());
            }
        }
    }

    #[test]
    fn given_graphs_have_the_peaks_they_state() {
        let Some(folder) = test_support::data("plans/graphs") else { return };
        let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
        paths.sort();
        for path in &paths {
            let text = std::fs::read_to_string(path).unwrap();
            let problem = import(&text).unwrap().problem;
            let meta = &serde_json::from_str::<Json>(&text).unwrap()["meta"];
            assert_eq!(Some(problem.nodes.len() as u64), meta["n_ops"].as_u64(), "{}", path.display());
            // Run in the order of the text: allocate outputs, then free what is not read again.
            let mut last = vec![0; problem.values.len()];
            for (n, node) in problem.nodes.iter().enumerate() {
                node.inputs.iter().chain(&node.outputs).for_each(|&v| last[v as usize] = n);
            }
            let (mut live, mut peak) = (0, 0);
            for (n, node) in problem.nodes.iter().enumerate() {
                live += node.outputs.iter().map(|&v| problem.values[v as usize].bytes).sum::<u64>();
                peak = peak.max(live);
                let freed = node.inputs.iter().chain(&node.outputs).filter(|&&v| last[v as usize] == n);
                live -= freed.map(|&v| problem.values[v as usize].bytes).sum::<u64>();
            }
            if let Some(stated) = meta["peak_bytes"].as_u64() {
                assert_eq!(peak, stated, "{}", path.display());
            }
            let cost: u64 = problem.nodes.iter().map(|n| n.implementations[0].time).sum();
            assert_eq!(Some(cost), meta["total_cost"].as_u64().or(Some(cost)), "{}", path.display());
        }
        assert!(paths.len() >= 10);
    }
}
