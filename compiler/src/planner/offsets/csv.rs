//! The allocation instance format `id,lower,upper,size` (lifetimes half-open), and solving one from a file's text.
//!
//! The same tiny format is input, benchmark and debugging view. Columns are found by their names in the header line, in any order;
//! further columns are ignored.

use std::collections::HashMap;

use super::{Buffer, Limits, Placement, StopReason};
use crate::planner::problem::Bytes;

/// What is wrong with an instance file. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CsvError {
    /// No header line.
    #[error("the file is empty; expected a header line id,lower,upper,size")]
    Empty,
    /// Nothing below the header.
    #[error("the file has no buffers; expected lines below the header")]
    NoBuffers,
    /// Two buffers of one name.
    #[error("line {line}: id {id:?} is taken by line {first}")]
    DuplicateId {
        /// The later line.
        line: usize,
        /// The name.
        id: String,
        /// The line that has it, too.
        first: usize,
    },
    /// The header lacks a column.
    #[error("line {line}: the header has no column {column:?}")]
    MissingColumn {
        /// Line of the header.
        line: usize,
        /// Column looked for.
        column: &'static str,
    },
    /// The header names a column twice.
    #[error("line {line}: the header names column {column:?} twice")]
    DuplicateColumn {
        /// Line of the header.
        line: usize,
        /// Column named twice.
        column: &'static str,
    },
    /// A line is too short.
    #[error("line {line}: no field for column {column:?}")]
    MissingField {
        /// Line of the buffer.
        line: usize,
        /// Column without a field.
        column: &'static str,
    },
    /// A field is not an unsigned number.
    #[error("line {line}: column {column:?} is {text:?}, not an unsigned 64-bit number")]
    NotANumber {
        /// Line of the buffer.
        line: usize,
        /// Column of the field.
        column: &'static str,
        /// The field's text.
        text: String,
    },
    /// A life that ends before it begins.
    #[error("line {line}: lower {lower} is above upper {upper}")]
    Reversed {
        /// Line of the buffer.
        line: usize,
        /// Start of life.
        lower: u64,
        /// End of life.
        upper: u64,
    },
    /// Sizes together exceed what an address can say.
    #[error("line {line}: the sizes up to here reach 2^64 - 1 bytes together, where addresses end")]
    TooLarge {
        /// Line at which the sum overflows.
        line: usize,
    },
}

/// An instance: buffers and the names the file gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The `id` column.
    pub ids: Vec<String>,
    /// The buffers, in the order of the file.
    pub buffers: Vec<Buffer>,
}

/// Reads an instance. Empty lines are skipped; white space around fields is not significant.
pub fn parse(text: &str) -> Result<Instance, CsvError> {
    let mut lines = text.lines().enumerate().map(|(i, l)| (i + 1, l.trim())).filter(|(_, l)| !l.is_empty());
    let (line, header) = lines.next().ok_or(CsvError::Empty)?;
    let names: Vec<&str> = header.trim_start_matches('\u{feff}').split(',').map(str::trim).collect();
    let find = |column: &'static str| {
        let mut places =
            names.iter().enumerate().filter(|(_, n)| n.eq_ignore_ascii_case(column)).map(|(i, _)| i);
        let place = places.next().ok_or(CsvError::MissingColumn { line, column })?;
        places.next().map_or(Ok(place), |_| Err(CsvError::DuplicateColumn { line, column }))
    };
    let (id, lower, upper, size) = (find("id")?, find("lower")?, find("upper")?, find("size")?);
    let mut instance = Instance { ids: Vec::new(), buffers: Vec::new() };
    let mut seen = HashMap::new();
    let mut total = 0u64;
    for (line, text) in lines {
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        let field =
            |at: usize, column| fields.get(at).copied().ok_or(CsvError::MissingField { line, column });
        let number = |at: usize, column| {
            let text = field(at, column)?;
            text.parse::<u64>().map_err(|_| CsvError::NotANumber { line, column, text: text.to_string() })
        };
        let (start, end, bytes) = (number(lower, "lower")?, number(upper, "upper")?, number(size, "size")?);
        if start > end {
            return Err(CsvError::Reversed { line, lower: start, upper: end });
        }
        // The last address stands for none at all.
        total = total.checked_add(bytes).filter(|&t| t < u64::MAX).ok_or(CsvError::TooLarge { line })?;
        let id = field(id, "id")?;
        if let Some(first) = seen.insert(id, line) {
            return Err(CsvError::DuplicateId { line, id: id.to_string(), first });
        }
        instance.ids.push(id.to_string());
        instance.buffers.push(Buffer { start, end, size: bytes });
    }
    if instance.buffers.is_empty() {
        return Err(CsvError::NoBuffers);
    }
    Ok(instance)
}

/// What [`solve_csv`] found.
#[derive(Clone, Debug)]
pub struct Solved {
    /// The instance.
    pub instance: Instance,
    /// The placement; valid whatever the status.
    pub placement: Placement,
    /// The verdict.
    pub status: Status,
}

/// Verdict on an instance under a capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Placed within the capacity (or, without a capacity, placed).
    Ok,
    /// No placement within the capacity exists.
    InfeasibleProved,
    /// The work limit came first.
    NotFound,
}

impl Status {
    /// The word used in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::InfeasibleProved => "infeasible-proved",
            Status::NotFound => "not-found",
        }
    }
}

/// Reads and places an instance.
pub fn solve_csv(text: &str, capacity: Option<Bytes>, limits: Limits) -> Result<Solved, CsvError> {
    let instance = parse(text)?;
    let placement = super::place(&instance.buffers, capacity, limits);
    let status = match placement.stop {
        StopReason::Infeasible => Status::InfeasibleProved,
        StopReason::Optimal | StopReason::Fits => Status::Ok,
        StopReason::WorkLimit if capacity.is_none() => Status::Ok,
        StopReason::WorkLimit => Status::NotFound,
    };
    Ok(Solved { instance, placement, status })
}
