# Writes the files of the page as a source file: cmake -DFROM=DIR -DTO=FILE -P embed.cmake
set(text "#include \"tools/prdctl/page.h\"\n\nnamespace prd::ctl {\nnamespace {\n\n")
set(list "")
foreach(entry "index.html||text/html; charset=utf-8" "style.css|style.css|text/css; charset=utf-8"
        "app.js|app.js|text/javascript; charset=utf-8" "icon.svg|icon.svg|image/svg+xml")
  string(REGEX MATCH "^([^|]*)[|]([^|]*)[|](.*)$" parts "${entry}")
  set(file ${CMAKE_MATCH_1})
  set(name "${CMAKE_MATCH_2}")
  set(type "${CMAKE_MATCH_3}")
  file(READ ${FROM}/${file} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(REGEX REPLACE "((0x..,){24})" "\\1\n" bytes "${bytes}")
  string(MAKE_C_IDENTIFIER ${file} id)
  string(APPEND text "constexpr unsigned char ${id}[] = {\n${bytes}0};\n\n")
  string(APPEND list "      {\"${name}\", \"${type}\",\n       {reinterpret_cast<const char*>(${id}), sizeof ${id} - 1}},\n")
endforeach()
string(APPEND text "}  // namespace\n\nconst std::vector<PageFile>& PageFiles() {\n"
       "  static const std::vector<PageFile> files = {\n${list}  };\n  return files;\n}\n\n}  // namespace prd::ctl\n")
file(WRITE ${TO} "${text}")
