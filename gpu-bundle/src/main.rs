//! The program in the bundle: `run PART [MODEL] --deadline S`, `run table`, `run merge --to FOLDER`.

use clap::Parser;
use gpu_bundle::{Bundle, MODELS, PARTS, device::On, part::Clock, run, table};
use std::{path::PathBuf, process::ExitCode, thread, time::Duration};

/// Time for what runs when the deadline comes to end by itself.
const GRACE: Duration = Duration::from_secs(3);

/// Proves on a machine with a GPU what cannot be proved without one.
#[derive(Parser)]
#[command(name = "run", after_help = parts())]
struct Args {
    /// The part, `table` to print all results, or `merge` to write them into one file.
    part: String,
    /// Of speed and torch: the model.
    model: Option<String>,
    /// Seconds after which the run ends; what is left is done by running the part again.
    #[arg(long, default_value_t = 540)]
    deadline: u64,
    /// The bundle's folder. Default: that of this program.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Of merge: where the file goes. Default: the bundle's results.
    #[arg(long)]
    to: Option<PathBuf>,
    /// Run on the simulated driver: slow, needs a C++ compiler, and measures nothing of use.
    #[arg(long)]
    sim: bool,
}

fn parts() -> String {
    let line = |(name, model, what): &(&str, bool, &str)| {
        format!("  {:<12} {what}", if *model { format!("{name} MODEL") } else { (*name).to_owned() })
    };
    let parts: Vec<String> = PARTS.iter().map(line).collect();
    format!("Parts:\n{}\nModels: {}", parts.join("\n"), MODELS.join(", "))
}

fn go(args: &Args) -> Result<bool, String> {
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let own = exe.parent().map(PathBuf::from).ok_or("this program has no folder")?;
    let folder = args.folder.clone().unwrap_or(own);
    match args.part.as_str() {
        "table" => print!("{}", table::table(&table::all(&folder)?)),
        "merge" => {
            let to = args.to.clone().unwrap_or(folder.join("results"));
            println!("wrote {}", table::merge(&table::all(&folder)?, &to)?.display());
        }
        part => {
            let on =
                if args.sim { On::Sim { folder: folder.join("simulated"), sources: None } } else { On::Real };
            let clock = Clock::seconds(args.deadline);
            // What runs then stands in the file as cut.
            thread::spawn(move || {
                thread::sleep(clock.left() + GRACE);
                eprintln!("the deadline is over; run the part again to go on");
                std::process::exit(3);
            });
            let part = run(&Bundle { folder: folder.clone(), on }, part, args.model.as_deref(), clock)?;
            print!("{}", table::table(std::slice::from_ref(&part.results)));
            let merged = table::merge(&table::all(&folder)?, &folder.join("results"));
            merged
                .map_or_else(|e| eprintln!("not merged: {e}"), |p| eprintln!("merged into {}", p.display()));
            return Ok(part.failed() == 0);
        }
    }
    Ok(true)
}

fn main() -> ExitCode {
    match go(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::from(2)
        }
    }
}
