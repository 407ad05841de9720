#include "tools/sim/plot.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>

namespace prd::sim {
namespace {

// A gnuplot string: in single quotes, which are doubled inside.
std::string Quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') out += '\'';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + "'";
}

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

// What gnuplot draws; empty: nothing.
std::string Drawn(const std::string& script) {
  const File file(std::tmpfile(), std::fclose);
  if (file == nullptr || std::fwrite(script.data(), 1, script.size(), file.get()) < script.size() ||
      std::fflush(file.get()) != 0) {
    return {};
  }
  std::FILE* pipe = popen(("gnuplot /dev/fd/" + std::to_string(fileno(file.get()))).c_str(), "r");
  if (pipe == nullptr) return {};
  std::string drawn;
  char chunk[4096];
  for (std::size_t n = 0; (n = std::fread(chunk, 1, sizeof chunk, pipe)) > 0;) {
    drawn.append(chunk, n);
  }
  return pclose(pipe) == 0 ? drawn : std::string();
}

// The file is written here: gnuplot does not say where it could not write.
Status Draw(const std::string& path, const std::string& script) {
  const std::string drawn = Drawn(script);
  if (drawn.empty()) {
    return Status(Code::kUnavailable, path + ": gnuplot did not draw it (is gnuplot installed?)");
  }
  errno = 0;
  std::ofstream out(path, std::ios::binary);
  out << drawn;
  out.close();
  if (out) return Status::Ok();
  return Status(Code::kUnavailable, path + ": cannot be written: " + std::strerror(errno));
}

std::string Head(const std::string& title, int height) {
  return "set terminal svg size 1000," + std::to_string(height) +
         " noenhanced background 'white'\nset title " + Quoted(title) + "\nset key outside below\n";
}

double Seconds(Instant at) { return static_cast<double>(at.ns) / 1e9; }

}  // namespace

Status PlotTimeline(const std::string& path, const std::string& title,
                    const std::vector<Slice>& slices, std::size_t workers, double to_s) {
  const int height = static_cast<int>(std::min<std::size_t>(120 + 24 * workers, 2000));
  std::string script = Head(title, height);
  script += "set xlabel 'seconds'\nset ylabel 'worker'\nset yrange [-0.6:" +
            std::to_string(static_cast<double>(workers) - 0.4) +
            "] reverse\nset ytics 1\nset style fill solid noborder\n"
            "plot '-' using 1:2:3:4:5:6 with boxxyerror lc rgb '#4c78a8' title 'compute', "
            "'-' using 1:2:3:4:5:6 with boxxyerror lc rgb '#e0e0e0' title 'wait', "
            "'-' using 1:2:3:4:5:6 with boxxyerror lc rgb '#f58518' title 'reduce'\n";
  for (const auto kind : {Slice::Kind::kCompute, Slice::Kind::kWait, Slice::Kind::kReduce}) {
    script += "0 -9 0 0 -9 -9\n";  // a plot with no data at all is an error
    for (const Slice& slice : slices) {
      if (slice.kind != kind || (to_s > 0 && Seconds(slice.from) > to_s)) continue;
      char line[160];
      std::snprintf(line, sizeof line, "%.9g %u %.9g %.9g %.2f %.2f\n", Seconds(slice.from),
                    slice.worker, Seconds(slice.from), Seconds(slice.to), slice.worker - 0.4,
                    slice.worker + 0.4);
      script += line;
    }
    script += "e\n";
  }
  return Draw(path, script);
}

Status PlotLoss(const std::string& path, const std::string& title,
                const std::vector<std::pair<std::string, std::vector<LossPoint>>>& curves) {
  std::string plots;
  std::string data;
  for (const auto& [name, points] : curves) {
    if (points.empty()) continue;
    plots += (plots.empty() ? "" : ", ") + std::string("'-' using 1:2 with lines lw 2 title ") +
             Quoted(name);
    for (const LossPoint& point : points) {
      char line[80];
      std::snprintf(line, sizeof line, "%.9g %.9g\n", Seconds(point.at),
                    std::max(point.loss, 1e-12));
      data += line;
    }
    data += "e\n";
  }
  if (plots.empty()) return Status(Code::kInvalidArgument, path + ": there is no loss to draw");
  return Draw(path, Head(title, 600) +
                        "set xlabel 'seconds'\nset ylabel 'loss above the least'\n"
                        "set logscale y\nplot " +
                        plots + "\n" + data);
}

}  // namespace prd::sim
