//! `explain --html`: what the page is told adds up to what the validator found, and a browser shows it.

use crate::support::{dtrc, model};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The data of a page.
fn data(page: &str) -> Vec<Value> {
    let text = page.split("id=\"data\">").nth(1).and_then(|t| t.split("</script>").next()).unwrap();
    serde_json::from_str(text).unwrap()
}

fn number(v: &Value) -> u64 {
    v.as_u64().unwrap_or_else(|| panic!("{v} is no number"))
}

/// A plan in `share` of keep-all, and its page beside the plans of `more`.
fn page(dir: &Path, name: &str, share: &str, more: &[&str]) -> (String, PathBuf) {
    let plan = dir.join(format!("{name}{share}.dtrc")).display().to_string();
    dtrc(&["compile", &model(name), "--budget", share, "--work-limit", "200000", "-o", &plan]).ok();
    let html = dir.join(format!("{name}{share}.html"));
    dtrc(&[&["explain", &plan, "--html", &html.display().to_string()], more].concat()).ok();
    (plan, html)
}

#[test]
fn storages_add_up_to_the_live_bytes_of_each_step() {
    let dir = tempfile::tempdir().unwrap();
    for (name, share) in [("resnet_tiny", "70%"), ("transformer_tiny", "70%"), ("unet_tiny", "100%")] {
        let (_, html) = page(dir.path(), name, share, &[]);
        let plan = &data(&fs::read_to_string(html).unwrap())[0];
        let storages: Vec<&Value> = plan["storages"].as_array().unwrap().iter().collect();
        let mut repeated = 0;
        for (i, step) in plan["steps"].as_array().unwrap().iter().enumerate() {
            let mut live: Vec<(u64, u64)> = storages
                .iter()
                .filter(|s| number(&s[3]) <= i as u64 && i as u64 <= number(&s[4]))
                .map(|s| (number(&s[2]), number(&s[1])))
                .chain([(number(&step[5]), number(&step[6])), (0, number(&plan["state"]))])
                .filter(|(_, bytes)| *bytes > 0)
                .collect();
            assert_eq!(live.iter().map(|x| x.1).sum::<u64>(), number(&step[3]), "{name}, step {i}");
            live.sort_unstable();
            assert!(live.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0), "{name}, step {i}: {live:?}");
            repeated += number(&step[4]);
        }
        let listed = plan["recomputed"].as_array().unwrap().iter().map(|r| number(&r[1])).sum::<u64>();
        assert_eq!(listed, repeated);
        assert_eq!(repeated > 0, share != "100%", "{name}");
    }
}

/// Chromium, or `None` after saying loudly that the test is skipped. In CI a missing browser fails the test.
fn browser() -> Option<PathBuf> {
    let given = std::env::var_os("DTRC_BROWSER").map(PathBuf::from);
    let usual =
        ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].map(PathBuf::from);
    let found = given.into_iter().chain(usual).find(|p| p.exists());
    if found.is_none() {
        test_support::skipped("no browser: install chromium, or set DTRC_BROWSER to run this test");
    }
    found
}

/// The document after its scripts ran, and `script` after them.
fn rendered(browser: &Path, html: &Path, script: &str) -> String {
    let page = fs::read_to_string(html).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let with = dir.path().join("page.html");
    fs::write(&with, page.replace("</body>", &format!("<script>{script}</script></body>"))).unwrap();
    let profile = format!("--user-data-dir={}", dir.path().join("profile").display());
    let flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--virtual-time-budget=5000",
        "--window-size=1400,1200",
        "--dump-dom",
    ];
    let out =
        Command::new(browser).args(flags).arg(profile).arg(format!("file://{}", with.display())).output();
    let out = out.expect("the browser runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// What stands in the document behind `mark`, up to the next quote.
fn attribute<'a>(dom: &'a str, mark: &str) -> Vec<&'a str> {
    dom.split(mark).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

#[test]
fn a_browser_shows_the_live_set_under_the_pointer() {
    let Some(browser) = browser() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (full, _) = page(dir.path(), "resnet_tiny", "100%", &[]);
    let (_, html) = page(dir.path(), "resnet_tiny", "70%", &["--beside", &full]);
    let plans = data(&fs::read_to_string(&html).unwrap());
    assert_eq!(plans.len(), 2);
    // At first the peak; after the pointer moved over a quarter of the picture, the step there.
    let still = rendered(&browser, &html, "");
    let peaks: Vec<String> = plans.iter().map(|p| p["peak_step"].to_string()).collect();
    assert_eq!(attribute(&still, "data-step=\""), peaks);
    let sums: Vec<String> = plans.iter().map(|p| p["peak"].to_string()).collect();
    assert_eq!(attribute(&still, "data-sum=\""), sums);
    let hover = "document.querySelectorAll('.memory').forEach(c => { const r = c.getBoundingClientRect();
        c.dispatchEvent(new MouseEvent('mousemove', {clientX: r.left + r.width / 4, clientY: r.top + 5, bubbles: true})); });";
    let moved = rendered(&browser, &html, hover);
    let steps = attribute(&moved, "data-step=\"");
    for ((plan, step), sum) in plans.iter().zip(&steps).zip(attribute(&moved, "data-sum=\"")) {
        let all = plan["steps"].as_array().unwrap();
        let step: usize = step.parse().unwrap();
        assert!((step as f64 - all.len() as f64 / 4.0).abs() <= 2.0, "{step} of {}", all.len());
        assert_eq!(sum, all[step][3].to_string());
        let largest = plan["storages"].as_array().unwrap().iter();
        let largest = largest
            .filter(|s| number(&s[3]) <= step as u64 && step as u64 <= number(&s[4]))
            .max_by_key(|s| number(&s[1]))
            .unwrap();
        assert!(
            moved.contains(&format!("Live at step {step}")) && moved.contains(largest[0].as_str().unwrap())
        );
    }
    // The recomputed tensors are listed, and the pictures are not blank.
    let again = plans[0]["recomputed"][0][0].as_str().unwrap();
    assert!(still.contains(again) && plans[1]["recomputed"].as_array().unwrap().is_empty());
    let colors = "const c = document.querySelector('.map'); const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        const seen = new Set(); for (let i = 0; i < d.length; i += 4) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]); document.title = 'colors ' + seen.size;";
    let colored = rendered(&browser, &html, colors);
    let count = colored.split("<title>colors ").nth(1).and_then(|t| t.split('<').next()).unwrap();
    assert!(count.parse::<u32>().unwrap() >= 5, "{count} colors");
}

#[test]
fn names_are_text() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("m.dtrc").display().to_string();
    dtrc(&["compile", &model("mlp_tiny"), "--budget", "100%", "-o", &plan]).ok();
    let html = dir.path().join("m.html").display().to_string();
    let named = dir.path().join("a<b.dtrc");
    fs::copy(&plan, &named).unwrap();
    dtrc(&["explain", &named.display().to_string(), "--html", &html]).ok();
    let page = fs::read_to_string(&html).unwrap();
    assert!(data(&page)[0]["title"].as_str().unwrap().ends_with("a<b.dtrc"));
    assert!(!page.contains("a<b.dtrc"));
    dtrc(&["explain", &plan, "--beside", &plan]).fails(64, &["--html"]);
    dtrc(&["explain", &plan, "--html", "/no/such/folder/x.html"]).fails(74, &["x.html"]);
}
